"""Drafting ahead of the verdict as a report: how often outcomes are foreseen, and what it buys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from diffuspec.bench.questions import Question
from diffuspec.bench.report import TextTable
from diffuspec.bench.studies.foresight import FAN_OUTS, Foresight, measure_foresight
from diffuspec.bench.studies.overlap import OverlapRow, Pace, measure_overlap
from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import TokenIds
from diffuspec.engine import Engine
from diffuspec.telemetry.trace import Tracer

_DRAFTS = {
    "path of 8": SpeculationParams(policy="fixed", num_draft_tokens=8, tree_shape="path"),
    "path of 16": SpeculationParams(policy="fixed", num_draft_tokens=16, tree_shape="path"),
    "tree of 16 nodes": SpeculationParams(policy="fixed", num_draft_tokens=16, max_nodes=16),
}
_PACE = Pace()


def measure_ahead(
    engine: Engine, questions: Sequence[Question], max_tokens: int, tracer: Tracer | None = None
) -> tuple[list[TextTable], list[OverlapRow], dict[str, Any]]:
    """Return tables, the rows behind the second of them, and all of it as plain data.

    The last of those is traced.
    """
    if engine.drafter is None:
        raise ConfigError("there is no drafter: nothing can be drafted ahead")
    prompts: dict[str, list[TokenIds]] = defaultdict(list)
    for question in questions:
        prompts[question.family].append(
            engine.encode([{"role": "user", "content": question.turns[0]}])
        )
    foreseen = {
        name: measure_foresight(engine.verifier, engine.drafter, prompts, draft, max_tokens)
        for name, draft in _DRAFTS.items()
    }
    flat = [prompt for family in prompts.values() for prompt in family]
    rows = measure_overlap(
        engine.verifier, engine.drafter, flat, max_tokens=max_tokens, tracer=tracer
    )
    data = {
        "foresight": {name: [asdict(one) for one in found] for name, found in foreseen.items()},
        "overlap": [asdict(row) for row in rows],
    }
    return [_foresight_table(foreseen), _overlap_table(rows)], rows, data


def _foresight_table(foreseen: dict[str, list[Foresight]]) -> TextTable:
    cells = []
    for name, found in foreseen.items():
        num_steps = sum(one.num_steps for one in found)
        rates = [
            sum(one.hit_rates[count] * one.num_steps for one in found) / num_steps
            for count in FAN_OUTS
        ]
        cells.append((name, *(f"{rate:.2f}" for rate in rates)))
    title = "Share of verdicts among the first outcomes, by how many are drafted ahead"
    return TextTable(title, ("draft", *map(str, FAN_OUTS)), tuple(cells))


def _overlap_table(rows: Sequence[OverlapRow]) -> TextTable:
    cells = [
        (
            row.system if row.system == "sequential" else f"{row.num_outcomes} ahead",
            f"{row.hit_rate:.2f}",
            f"{row.tokens_per_second:.1f}",
            f"{row.speedup:.2f}x",
            f"{row.share_of_ideal:.0%}",
            f"{row.verify_idle_share:.0%}",
        )
        for row in rows
    ]
    title = (
        f"Verifying takes {1e3 * _PACE.verify_seconds:g} ms and drafting "
        f"{1e3 * _PACE.draft_seconds:g} ms, on hardware of their own"
    )
    columns = ("system", "hit rate", "tokens/s", "speed-up", "of the ideal", "verifier idle")
    return TextTable(title, columns, tuple(cells))
