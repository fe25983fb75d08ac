"""Sweeps over one parameter, tabulated and plotted beside the paper's results.

All variants of all sweeps and plain decoding are interleaved and share both models. Settings that
occur in several sweeps, such as the paper's own, are measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from diffuspec.bench.plots import Line, plot_sweep
from diffuspec.bench.questions import Question
from diffuspec.bench.report import families_tables, row_to_json
from diffuspec.bench.run import (
    ChatCodec,
    Record,
    RecordKey,
    Run,
    RunSettings,
    median_answers,
    run_questions,
    warm_up,
)
from diffuspec.bench.stats import ALL_FAMILIES, Row, compute_rows
from diffuspec.bench.studies.ablations import Sweep, Variant
from diffuspec.bench.systems.engine_system import EngineSystem, sibling
from diffuspec.bench.systems.naming import BASELINE
from diffuspec.bench.text_table import TextTable
from diffuspec.core.config import EngineConfig
from diffuspec.core.params import MAX_DRAFT_TOKENS, PLAIN, SpeculationParams
from diffuspec.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that is measured once, for one or more variants."""

    name: str
    config: EngineConfig
    speculation: SpeculationParams
    places: list[tuple[str, str]]  # (name of a sweep, label of a variant)


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The results of a sweep."""

    sweep: Sweep
    rows: tuple[Row, ...]  # the systems are plain decoding and the variants' labels

    def row(self, label: str) -> Row:
        """Return a variant's results over all families."""
        (found,) = (r for r in self.rows if (r.system, r.family) == (label, ALL_FAMILIES))
        return found

    def tables(self) -> list[TextTable]:
        """Return the variants beside the paper's results, by family too if the paper does so."""
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
        }

    def plot(self, path: Path) -> None:
        """Plot acceptance length and speed-up over the parameter, ours and the paper's."""
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


def distinct_settings(chosen: Sequence[Sweep], config: EngineConfig) -> list[Setting]:
    """Return the distinct settings to measure for the sweeps, in order."""
    found: list[Setting] = []
    for sweep in chosen:
        for variant in sweep.variants:
            own, speculation = variant.apply(config), variant.speculation
            place = sweep.name, variant.label
            same = (one for one in found if (one.config, one.speculation) == (own, speculation))
            if setting := next(same, None):
                setting.places.append(place)
            else:
                found.append(Setting(" ".join(place), own, speculation, [place]))
    return found


def num_answers(num_settings: int, questions: Sequence[Question], num_repeats: int) -> int:
    """Return the number of answers with each setting and with plain decoding."""
    return sum(len(question.turns) for question in questions) * num_repeats * (1 + num_settings)


def run_settings(
    measured: Sequence[Setting],
    engine: Engine,
    questions: Sequence[Question],
    settings: RunSettings,
    on_answer: Callable[[Record], None],
    known: Mapping[RecordKey, Record] | None = None,
) -> Run:
    """Measure plain decoding and the settings on an engine with the sweeps' defaults."""
    codec = ChatCodec(engine.tokenizer)
    with ExitStack() as stack:
        systems = list(_systems(measured, engine, stack))
        warm_up(systems, questions, codec, settings)
        return run_questions(systems, questions, codec, settings, on_answer, known)


def sweep_results(
    chosen: Sequence[Sweep], measured: Sequence[Setting], run: Run
) -> list[SweepResult]:
    """Return the results of the sweeps whose settings were measured."""
    names = [BASELINE, *(setting.name for setting in measured)]
    rows = compute_rows(median_answers(run.records), names)
    return [SweepResult(sweep, tuple(_rows_of(sweep, measured, rows))) for sweep in chosen]


def _systems(
    measured: Sequence[Setting], engine: Engine, stack: ExitStack
) -> Iterator[EngineSystem]:
    """Yield plain decoding and the settings."""
    plain = stack.enter_context(sibling(engine))
    yield EngineSystem(BASELINE, plain, PLAIN)
    for setting in measured:
        own = stack.enter_context(sibling(engine, setting.config))
        yield EngineSystem(setting.name, own, setting.speculation)


def _rows_of(sweep: Sweep, measured: Sequence[Setting], rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the rows of plain decoding, and those of the sweep's variants by label."""
    labels = {
        label: one.name for one in measured for name, label in one.places if name == sweep.name
    }
    yield from (row for row in rows if row.system == BASELINE)
    for variant in sweep.variants:
        for row in rows:
            if row.system == labels[variant.label]:
                yield replace(row, system=variant.label)
