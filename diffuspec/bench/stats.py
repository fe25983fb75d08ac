"""The statistics of a report, computed from answers.

There are two speed-ups, both relative to the baseline. `speedup`, the headline, divides all tokens
by all seconds. `spec_bench_speedup`, Spec-Bench's definition, uses the mean over questions of
tokens per second, with the turns of a question combined. Acceptance length is Spec-Bench's MAT:
committed tokens per step over all steps, the target's own token included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from diffuspec.bench.questions import SPEC_BENCH_FAMILIES
from diffuspec.bench.run import Record
from diffuspec.bench.systems.answer import Answer
from diffuspec.bench.systems.naming import BASELINE
from diffuspec.core.types import StepStats

ALL_FAMILIES = "all"
SPEC_BENCH = "spec_bench"  # all six families together, if there are others too
Interval: TypeAlias = tuple[float, float]

_NUM_DRAWS = 1000
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Costs:
    """The times and drafts of an engine's answers."""

    draft_share: float
    search_share: float
    verify_share: float
    other_share: float
    overhead_ms_per_step: float  # outside the forwards of both models
    search_ms_per_step: float
    mean_draft_tokens: float  # tokens requested per step with a draft
    num_fallbacks: int  # steps without a draft because drafting failed


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one family, on "spec_bench" or on "all"."""

    system: str
    family: str
    num_questions: int
    num_output_tokens: int
    num_steps: int
    num_accepted_tokens: int  # excludes the target's own token of each step
    seconds: float
    tokens_per_second: float
    speedup: float
    spec_bench_speedup: float
    mean_acceptance_length: float
    mean_accepted_tokens: float  # per step, without the target's own token
    intervals: Intervals
    costs: Costs | None  # None for transformers' systems


def compute_rows(records: Sequence[Record], systems: Sequence[str]) -> list[Row]:
    """Return a row per family and system; families in order of appearance, "all" last."""
    rows = []
    for family, members in _groups(records).items():
        by_system: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record.family in members:
                by_system[record.system].append(record)
        baseline = by_system[BASELINE]
        rows += [_row(name, family, by_system[name], baseline) for name in systems]
    return rows


def headline_family(rows: Sequence[Row]) -> str:
    """Return the family of the headline results: Spec-Bench's six, or all families."""
    return SPEC_BENCH if any(row.family == SPEC_BENCH for row in rows) else ALL_FAMILIES


def acceptance_by_position(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return the share of drafts accepted up to position 1, 2, ..., by drafting system.

    Beyond its end a draft counts as not accepted, as in vLLM's statistics.
    """
    steps: dict[str, list[StepStats]] = defaultdict(list)
    for record in records:
        steps[record.system] += [step for step in record.answer.steps if step.num_tree_nodes]
    return {system: _survival(own) for system, own in steps.items() if own}


def _groups(records: Sequence[Record]) -> dict[str, frozenset[str]]:
    families = dict.fromkeys(record.family for record in records)
    groups = {family: frozenset((family,)) for family in families}
    if 0 < len(families.keys() & set(SPEC_BENCH_FAMILIES)) < len(families):
        groups[SPEC_BENCH] = frozenset(SPEC_BENCH_FAMILIES)
    groups[ALL_FAMILIES] = frozenset(families)
    return groups


def _row(name: str, family: str, own: Sequence[Record], baseline: Sequence[Record]) -> Row:
    answers = [record.answer for record in own]
    num_tokens = sum(len(answer.token_ids) for answer in answers)
    num_steps = sum(answer.num_steps for answer in answers)
    return Row(
        system=name,
        family=family,
        num_questions=len({record.question_id for record in own}),
        num_output_tokens=num_tokens,
        num_steps=num_steps,
        num_accepted_tokens=sum(map(_num_accepted_tokens, answers)),
        seconds=sum(answer.seconds for answer in answers),
        tokens_per_second=_pooled_speed(own),
        speedup=_ratio(_pooled_speed(own), _pooled_speed(baseline)),
        spec_bench_speedup=_ratio(_mean_speed(own), _mean_speed(baseline)),
        mean_acceptance_length=_ratio(num_tokens, num_steps),
        mean_accepted_tokens=_ratio(sum(map(_num_accepted_tokens, answers)), num_steps),
        intervals=bootstrap(*_question_costs(own, baseline)),
        costs=_costs(answers),
    )


def _question_costs(*groups: Sequence[Record]) -> Iterator[list[QuestionCost]]:
    """Yield the cost of each question in each group of records, in the same order."""
    question_ids = sorted({record.question_id for group in groups for record in group})
    for group in groups:
        answers: dict[int, list[Answer]] = defaultdict(list)
        for record in group:
            answers[record.question_id].append(record.answer)
        yield [
            QuestionCost(
                sum(len(answer.token_ids) for answer in answers[question_id]),
                sum(answer.seconds for answer in answers[question_id]),
                sum(answer.num_steps for answer in answers[question_id]),
            )
            for question_id in question_ids
        ]


def _num_accepted_tokens(answer: Answer) -> int:
    if answer.steps:
        return sum(step.num_accepted_tokens for step in answer.steps)
    return len(answer.token_ids) - answer.num_steps


def _pooled_speed(records: Sequence[Record]) -> float:
    num_tokens = sum(len(record.answer.token_ids) for record in records)
    return _ratio(num_tokens, sum(record.answer.seconds for record in records))


def _mean_speed(records: Sequence[Record]) -> float:
    questions: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        questions[record.question_id].append(record)
    return fmean(map(_pooled_speed, questions.values()))


def _costs(answers: Sequence[Answer]) -> Costs | None:
    if any(answer.forward_seconds is None for answer in answers):
        return None
    steps = [step for answer in answers for step in answer.steps]
    seconds = sum(answer.seconds for answer in answers)
    draft = sum(step.draft_seconds for step in steps)
    search = sum(step.search_seconds for step in steps)
    verify = sum(step.verify_seconds for step in steps)
    forwards = sum(answer.forward_seconds or 0.0 for answer in answers)
    overhead = sum(step.step_seconds for step in steps) - forwards
    drafted = [step.num_draft_tokens for step in steps if step.num_draft_tokens]
    return Costs(
        draft_share=_ratio(draft, seconds),
        search_share=_ratio(search, seconds),
        verify_share=_ratio(verify, seconds),
        other_share=_ratio(seconds - draft - search - verify, seconds),
        overhead_ms_per_step=1000 * _ratio(overhead, len(steps)),
        search_ms_per_step=1000 * _ratio(search, len(steps)),
        mean_draft_tokens=fmean(drafted) if drafted else 0.0,
        num_fallbacks=sum(step.fallback is not None for step in steps),
    )


def _survival(steps: Sequence[StepStats]) -> list[float]:
    depth = max(step.tree_depth for step in steps)
    return [
        _ratio(sum(step.num_accepted_tokens >= position for step in steps), len(steps))
        for position in range(1, depth + 1)
    ]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


class QuestionCost(NamedTuple):
    """The cost of the answers to one question, over all turns."""

    num_tokens: int
    seconds: float
    num_steps: int


class Intervals(NamedTuple):
    """95 % confidence intervals of the statistics with the same names."""

    speedup: Interval
    spec_bench_speedup: Interval
    mean_acceptance_length: Interval


def bootstrap(own: Sequence[QuestionCost], baseline: Sequence[QuestionCost]) -> Intervals:
    """Return the intervals for a system; both lists hold the same questions in the same order."""
    count = len(own)
    drawn = np.random.default_rng(0).integers(count, size=(_NUM_DRAWS, count))
    tokens, seconds, steps = np.array(own, np.float64).T
    base_tokens, base_seconds, _ = np.array(baseline, np.float64).T

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(values[drawn].sum(axis=1))

    speeds = _divided(tokens, seconds), _divided(base_tokens, base_seconds)
    pooled = (
        _divided(total(tokens), total(seconds)),
        _divided(total(base_tokens), total(base_seconds)),
    )
    return Intervals(
        _middle(_divided(*pooled)),
        _middle(_divided(total(speeds[0]), total(speeds[1]))),
        _middle(_divided(total(tokens), total(steps))),
    )


def _divided(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _middle(values: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(values, _PERCENTILES).tolist()
    return low, high
