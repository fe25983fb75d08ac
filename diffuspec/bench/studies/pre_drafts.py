"""The study of pre-drafting: hit rates on real drafts, and the resulting speed."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from diffuspec.algorithm.draft_tree import cut_draft
from diffuspec.bench.questions import Question
from diffuspec.bench.studies.overlap import SEQUENTIAL, OverlapRow, Pace, measure_overlap
from diffuspec.bench.text_table import TextTable
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import Drafter, Verifier
from diffuspec.core.params import GREEDY, MAX_DRAFT_TOKENS, SpeculationParams
from diffuspec.core.types import (
    MAX_ALTERNATIVES,
    Draft,
    DraftRequest,
    TokenIds,
    Verdict,
    VerifyRequest,
)
from diffuspec.engine.engine import Engine
from diffuspec.speculation.acceptance import Acceptance, SharedAcceptance
from diffuspec.speculation.outcomes import RankedOutcome, outcome_of
from diffuspec.telemetry.trace import Tracer

FAN_OUTS = (1, 2, 4, 8, 16)  # numbers of outcomes
_DRAFTS = {
    "path of 8": SpeculationParams(policy="fixed", num_draft_tokens=8, tree_shape="path"),
    "path of 16": SpeculationParams(policy="fixed", num_draft_tokens=16, tree_shape="path"),
    "tree of 16 nodes": SpeculationParams(policy="fixed", num_draft_tokens=16, max_nodes=16),
}
_PACE = Pace()


@dataclass(frozen=True, slots=True)
class HitRates:
    """Share of verdicts that were among the first ranked outcomes, by number of outcomes."""

    family: str
    num_steps: int  # steps after which another draft was needed
    mean_acceptance_length: float
    hit_rates: Mapping[int, float]
    expected: Mapping[int, float]  # the same shares, as predicted by the ranking's probabilities


def study_pre_drafts(
    engine: Engine, questions: Sequence[Question], max_tokens: int, tracer: Tracer | None = None
) -> tuple[list[TextTable], list[OverlapRow], dict[str, Any]]:
    """Return the tables, the rows of the second one, and all results as plain data.

    The tracer records the last system of the second table. Raises ConfigError without a drafter.
    """
    if engine.drafter is None:
        raise ConfigError("there is no drafter, so there are no pre-drafts")
    prompts: dict[str, list[TokenIds]] = defaultdict(list)
    for question in questions:
        prompts[question.family].append(
            engine.encode([{"role": "user", "content": question.turns[0]}])
        )
    found = {
        name: measure_hit_rates(engine.verifier, engine.drafter, prompts, draft, max_tokens)
        for name, draft in _DRAFTS.items()
    }
    flat = [prompt for family in prompts.values() for prompt in family]
    rows = measure_overlap(
        engine.verifier, engine.drafter, flat, max_tokens=max_tokens, tracer=tracer
    )
    data = {
        "hit_rates": {name: [asdict(one) for one in rates] for name, rates in found.items()},
        "overlap": [asdict(row) for row in rows],
    }
    return [_hit_rate_table(found), _overlap_table(rows)], rows, data


def measure_hit_rates(
    verifier: Verifier,
    drafter: Drafter,
    prompts: Mapping[str, Sequence[TokenIds]],
    speculation: SpeculationParams,
    max_tokens: int = 96,
) -> list[HitRates]:
    """Answer the prompts of each family one at a time, and rank the outcomes of every draft.

    Drafts have the fixed length, shape and size given by `speculation`.
    """
    return asyncio.run(_measure_hit_rates(verifier, drafter, prompts, speculation, max_tokens))


async def _measure_hit_rates(
    verifier: Verifier,
    drafter: Drafter,
    prompts: Mapping[str, Sequence[TokenIds]],
    speculation: SpeculationParams,
    max_tokens: int,
) -> list[HitRates]:
    shared, results = SharedAcceptance(MAX_DRAFT_TOKENS), []
    for family, texts in prompts.items():
        tally = _Tally()
        for number, text in enumerate(texts):
            answer = _Answer(f"{family}-{number}", text, max_tokens, speculation)
            await answer.decode(verifier, drafter, Acceptance(shared), tally)
        results.append(tally.result(family))
    return results


@dataclass(slots=True)
class _Tally:
    """Counts over the answers of one family."""

    num_steps: int = 0
    num_tokens: int = 0
    num_ranked: int = 0
    hits: Counter[int] = field(default_factory=Counter)
    expected: dict[int, float] = field(default_factory=lambda: dict.fromkeys(FAN_OUTS, 0.0))

    def count(self, ranked: Sequence[RankedOutcome], verdict: Verdict) -> None:
        happened = outcome_of(verdict)
        self.num_ranked += 1
        for fan_out in FAN_OUTS:
            first = ranked[:fan_out]
            self.hits[fan_out] += happened in [one.outcome for one in first]
            self.expected[fan_out] += sum(one.probability for one in first)

    def result(self, family: str) -> HitRates:
        count = max(self.num_ranked, 1)
        return HitRates(
            family,
            self.num_ranked,
            self.num_tokens / max(self.num_steps, 1),
            {fan_out: self.hits[fan_out] / count for fan_out in FAN_OUTS},
            {fan_out: self.expected[fan_out] / count for fan_out in FAN_OUTS},
        )


class _Answer:
    """One prompt and the tokens committed after it."""

    def __init__(
        self, name: str, prompt: TokenIds, max_tokens: int, speculation: SpeculationParams
    ) -> None:
        self._name = name
        self._num_prompt_tokens = len(prompt)
        self._max_len = len(prompt) + max_tokens
        self._speculation = speculation
        self._prefix = prompt

    async def decode(
        self, verifier: Verifier, drafter: Drafter, acceptance: Acceptance, tally: _Tally
    ) -> None:
        """Decode to the end, and rank the outcomes of each draft before its verdict."""
        stops = frozenset(verifier.info.eos_token_ids)
        while len(self._prefix) + 1 < self._max_len:
            [draft] = await drafter.draft([self._draft_request()])
            # The last position is drafted only for its alternatives.
            draft = cut_draft(draft, self._speculation.num_draft_tokens)
            ranked = acceptance.rank(draft, self._prefix)
            [verdict] = await verifier.verify([self._verify_request(draft)])
            acceptance.observe_verdict(draft, verdict)
            tally.num_steps += 1
            tally.num_tokens += len(verdict.token_ids)
            self._prefix = np.append(self._prefix, np.array(verdict.token_ids, np.int32))
            if not stops.isdisjoint(verdict.token_ids):
                break
            tally.count(ranked, verdict)
        await drafter.release(self._name)
        await verifier.release(self._name)

    def _draft_request(self) -> DraftRequest:
        speculation = self._speculation
        weight = speculation.drafter_weight
        room = self._max_len - len(self._prefix)
        return DraftRequest(
            request_id=self._name,
            prefix=self._prefix,
            num_draft_tokens=min(speculation.num_draft_tokens + 1, room),
            tree_shape=speculation.tree_shape,
            max_nodes=speculation.max_nodes,
            drafter_weight=0.5 if weight == "adaptive" else weight,
            sampling=GREEDY,
            num_alternatives=MAX_ALTERNATIVES,
        )

    def _verify_request(self, draft: Draft) -> VerifyRequest:
        num_prompt_tokens = self._num_prompt_tokens
        return VerifyRequest(self._name, self._prefix, num_prompt_tokens, draft.tree, GREEDY)


def _hit_rate_table(found: Mapping[str, Sequence[HitRates]]) -> TextTable:
    cells = []
    for name, families in found.items():
        num_steps = sum(one.num_steps for one in families)
        rates = [
            sum(one.hit_rates[count] * one.num_steps for one in families) / num_steps
            for count in FAN_OUTS
        ]
        cells.append((name, *(f"{rate:.2f}" for rate in rates)))
    title = "Hit rate of pre-drafts, by number of outcomes pre-drafted"
    return TextTable(title, ("draft", *map(str, FAN_OUTS)), tuple(cells))


def _overlap_table(rows: Sequence[OverlapRow]) -> TextTable:
    cells = [
        (
            row.system if row.system == SEQUENTIAL else f"{row.num_outcomes} pre-drafts",
            f"{row.hit_rate:.2f}",
            f"{row.tokens_per_second:.1f}",
            f"{row.speedup:.2f}x",
            f"{row.share_of_ideal:.0%}",
            f"{row.verify_idle_share:.0%}",
        )
        for row in rows
    ]
    title = (
        f"Overlap, if verifying takes {1e3 * _PACE.verify_seconds:g} ms and drafting"
        f" {1e3 * _PACE.draft_seconds:g} ms, each on hardware of its own"
    )
    columns = ("system", "hit rate", "tokens/s", "speed-up", "of the ideal", "verifier idle")
    return TextTable(title, columns, tuple(cells))
