"""Sweeps over one parameter, tabulated and drawn beside the paper's figures.

Sweeps run one after the other; within a sweep all variants and plain decoding are interleaved. The
target is shared; S, M_max and tau get a drafter per value, all in memory during their sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffuspec.bench.plots import Line, plot_sweep
from diffuspec.bench.questions import Question
from diffuspec.bench.report import TextTable, families_tables, row_to_json
from diffuspec.bench.run import (
    ChatCodec,
    Mismatch,
    Record,
    RunSettings,
    find_mismatches,
    median_answers,
    run_questions,
    warm_up,
)
from diffuspec.bench.stats import ALL_FAMILIES, Row, compute_rows
from diffuspec.bench.studies.ablations import Sweep, Variant
from diffuspec.bench.systems.engine_system import EngineSystem, sibling
from diffuspec.bench.systems.naming import BASELINE
from diffuspec.core.config import EngineConfig
from diffuspec.core.params import MAX_DRAFT_TOKENS, SpeculationParams
from diffuspec.engine import Engine


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The figures of a sweep."""

    sweep: Sweep
    rows: tuple[Row, ...]  # systems are plain and the variants' labels
    mismatches: tuple[Mismatch, ...]
    skipped: tuple[tuple[int, int], ...] = ()  # (question id, turn)

    def row(self, label: str) -> Row:
        """Return a variant's figures over all families."""
        (found,) = (r for r in self.rows if (r.system, r.family) == (label, ALL_FAMILIES))
        return found

    def tables(self) -> list[TextTable]:
        """Return the variants beside the paper's figures, also by family if the paper does."""
        cells = tuple(self._cells(variant) for variant in self.sweep.variants)
        columns = (
            self.sweep.parameter,
            "acceptance length",
            "speed-up",
            "tokens/s",
            "draft tokens",
            "paper's length",
            "paper's speed-up",
        )
        tables = [TextTable(self.sweep.title, columns, cells)]
        if self.sweep.shows_families:
            tables += families_tables(self.rows)
        return tables

    def _cells(self, variant: Variant) -> tuple[str, ...]:
        row, paper = self.row(variant.label), variant.paper
        return (
            variant.label,
            f"{row.mean_acceptance_length:.2f}",
            f"{row.speedup:.2f}x",
            f"{row.tokens_per_second:.1f}",
            f"{row.costs.mean_draft_tokens:.1f}" if row.costs else "",
            f"{paper.mean_acceptance_length:.2f}" if paper else "",
            f"{paper.speedup:.2f}x" if paper else "",
        )

    def to_json(self) -> dict[str, Any]:
        variants = [
            {
                "label": variant.label,
                "paper": asdict(variant.paper) if variant.paper else None,
                "rows": [row_to_json(row) for row in self.rows if row.system == variant.label],
            }
            for variant in self.sweep.variants
        ]
        return {
            "name": self.sweep.name,
            "title": self.sweep.title,
            "parameter": self.sweep.parameter,
            "plain": [row_to_json(row) for row in self.rows if row.system == BASELINE],
            "variants": variants,
            "mismatches": [asdict(mismatch) for mismatch in self.mismatches],
        }

    def plot(self, path: Path) -> None:
        """Draw acceptance length and speed-up over the parameter, ours and the paper's."""
        panels = {
            "acceptance length": self._lines("mean_acceptance_length"),
            "speed-up over plain": self._lines("speedup"),
        }
        plot_sweep(self.sweep.title, self.sweep.parameter, panels, path)

    def _lines(self, figure: str) -> list[Line]:
        variants = self.sweep.variants
        known = [(variant.x, variant.paper) for variant in variants if variant.paper]
        ours = tuple(getattr(self.row(variant.label), figure) for variant in variants)
        theirs = tuple(getattr(paper, figure) for _, paper in known)
        return [
            Line("measured", tuple(variant.x for variant in variants), ours),
            Line("paper (Qwen2.5-32B, Dream-7B)", tuple(x for x, _ in known), theirs),
        ]


def ablation_config(config: EngineConfig) -> EngineConfig:
    """Return the configuration with room for drafts of any length."""
    target = config.target.model_copy(update={"max_tree_nodes": MAX_DRAFT_TOKENS})
    return config.model_copy(update={"target": target})


def num_answers(chosen: Sequence[Sweep], questions: Sequence[Question], num_repeats: int) -> int:
    """Return the number of answers that the sweeps take."""
    num_turns = sum(len(question.turns) for question in questions)
    return num_turns * num_repeats * sum(1 + len(sweep.variants) for sweep in chosen)


def run_sweep(
    sweep: Sweep,
    engine: Engine,
    questions: Sequence[Question],
    settings: RunSettings,
    on_answer: Callable[[Record], None],
) -> SweepResult:
    """Measure a sweep around an engine with the default of its parameter."""
    codec = ChatCodec(engine.tokenizer)
    with ExitStack() as stack:
        systems = list(_systems(sweep, engine, stack))
        warm_up(systems, questions, codec, settings)
        run = run_questions(systems, questions, codec, settings, on_answer)
    rows = compute_rows(median_answers(run.records), [system.name for system in systems])
    return SweepResult(sweep, tuple(rows), tuple(find_mismatches(run.records)), run.skipped)


def _systems(sweep: Sweep, engine: Engine, stack: ExitStack) -> Iterator[EngineSystem]:
    """Yield plain decoding and the variants."""
    plain = stack.enter_context(sibling(engine))
    yield EngineSystem(BASELINE, plain, SpeculationParams(policy="off"))
    for variant in sweep.variants:
        own = stack.enter_context(sibling(engine, variant.apply(engine.config)))
        yield EngineSystem(variant.label, own, variant.speculation)
