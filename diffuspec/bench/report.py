"""Results as tables on the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from diffuspec.bench.machine import Machine
from diffuspec.bench.overhead import DraftCost, StepOverhead
from diffuspec.bench.run import Mismatch
from diffuspec.bench.stats import ALL_FAMILIES, SPEC_BENCH, Row, headline_family
from diffuspec.bench.systems.naming import BASELINE
from diffuspec.bench.text_table import TextTable

_FAMILY_TITLES = {SPEC_BENCH: "the six Spec-Bench families", ALL_FAMILIES: "all families"}


@dataclass(frozen=True, slots=True)
class Results:
    """All results of one benchmark."""

    machine: Machine
    rows: tuple[Row, ...]
    mismatches: tuple[Mismatch, ...]
    skipped: tuple[tuple[int, int], ...]  # (question id, turn)
    draft_costs: tuple[DraftCost, ...]
    step_overheads: tuple[StepOverhead, ...]
    missing: Mapping[str, str] = field(default_factory=dict)  # reasons by system

    def tables(self) -> list[TextTable]:
        tables = [speed_table(self.rows, self.mismatches), interval_table(self.rows)]
        tables += [time_table(self.rows), *families_tables(self.rows)]
        if self.draft_costs:
            tables.append(draft_cost_table(self.draft_costs))
        if self.step_overheads:
            tables.append(step_overhead_table(self.step_overheads))
        return tables

    def to_json(self) -> dict[str, Any]:
        return {
            "machine": asdict(self.machine),
            "rows": [row_to_json(row) for row in self.rows],
            "mismatches": [asdict(mismatch) for mismatch in self.mismatches],
            "skipped": [{"question_id": q, "turn": turn} for q, turn in self.skipped],
            "draft_costs": [asdict(cost) for cost in self.draft_costs],
            "step_overheads": [asdict(overhead) for overhead in self.step_overheads],
            "missing": [{"system": name, "reason": why} for name, why in self.missing.items()],
        }


def row_to_json(row: Row) -> dict[str, Any]:
    """Flatten a row; costs of transformers' systems are null."""
    data = asdict(row)
    del data["intervals"]
    data |= {f"{name}_interval": pair for name, pair in row.intervals._asdict().items()}
    costs = data.pop("costs") or dict.fromkeys(_COST_FIELDS)
    return {**data, **costs}


_COST_FIELDS = (
    "draft_share",
    "search_share",
    "verify_share",
    "other_share",
    "overhead_ms_per_step",
    "search_ms_per_step",
    "mean_draft_tokens",
    "num_fallbacks",
)


def speed_table(rows: Sequence[Row], mismatches: Sequence[Mismatch]) -> TextTable:
    """Return the comparison of systems over the headline families."""
    own = _headline_rows(rows)
    family = _FAMILY_TITLES[own[0].family]
    num_questions, num_tokens = own[0].num_questions, own[0].num_output_tokens
    return TextTable(
        f"Speed over {family} ({num_questions} questions, {num_tokens} tokens)",
        (
            "system",
            "tokens/s",
            "speed-up",
            "Spec-Bench speed-up",
            "acceptance length",
            "same tokens",
        ),
        tuple(_speed_cells(row, mismatches) for row in own),
    )


def _speed_cells(row: Row, mismatches: Sequence[Mismatch]) -> tuple[str, ...]:
    num_different = sum(mismatch.system == row.system for mismatch in mismatches)
    return (
        row.system,
        f"{row.tokens_per_second:.1f}",
        f"{row.speedup:.2f}x",
        f"{row.spec_bench_speedup:.2f}x",
        f"{row.mean_acceptance_length:.2f}",
        f"no: {num_different}" if num_different else "yes",
    )


def interval_table(rows: Sequence[Row]) -> TextTable:
    """Return the confidence intervals of the results, and accepted tokens on their own."""
    names = ("speed-up", "Spec-Bench speed-up", "acceptance length")
    cells = []
    for row in _headline_rows(rows):
        intervals = [f"{low:.2f} to {high:.2f}" for low, high in row.intervals]
        cells.append((row.system, *intervals, f"{row.mean_accepted_tokens:.2f}"))
    title = "95 % intervals over questions, and acceptance without the target's own token"
    return TextTable(title, ("system", *names, "accepted tokens"), tuple(cells))


def time_table(rows: Sequence[Row]) -> TextTable:
    """Return the shares of our systems' time, over the headline families."""
    columns = ("system", "draft", "search", "verify", "other", "overhead ms/step", "search ms/step")
    cells = [
        (
            row.system,
            f"{costs.draft_share:.1%}",
            f"{costs.search_share:.1%}",
            f"{costs.verify_share:.1%}",
            f"{costs.other_share:.1%}",
            f"{costs.overhead_ms_per_step:.2f}",
            f"{costs.search_ms_per_step:.2f}",
        )
        for row in _headline_rows(rows)
        if (costs := row.costs) is not None
    ]
    title = "Share of the time, and time per step outside both forwards (with the search)"
    return TextTable(title, columns, tuple(cells))


def _headline_rows(rows: Sequence[Row]) -> list[Row]:
    family = headline_family(rows)
    return [row for row in rows if row.family == family]


def families_tables(rows: Sequence[Row]) -> list[TextTable]:
    """Return speed-up and acceptance length of every system on every family."""
    systems = tuple(name for name in dict.fromkeys(row.system for row in rows) if name != BASELINE)
    families: dict[str, dict[str, Row]] = {}
    for row in rows:
        families.setdefault(row.family, {})[row.system] = row
    speedups, lengths = [], []
    for family, by_system in families.items():
        own = [by_system[system] for system in systems]
        speedups.append((family, *(f"{row.speedup:.2f}x" for row in own)))
        lengths.append((family, *(f"{row.mean_acceptance_length:.2f}" for row in own)))
    columns = ("family", *systems)
    return [
        TextTable("Speed-up over plain by family", columns, tuple(speedups)),
        TextTable("Acceptance length by family", columns, tuple(lengths)),
    ]


def draft_cost_table(costs: Sequence[DraftCost]) -> TextTable:
    """Return the cost of a draft by prefix length, with the prefix cache on and off."""
    lengths = sorted({cost.num_prefix_tokens for cost in costs})
    by_key = {(cost.prefix_cache, cost.num_prefix_tokens): cost for cost in costs}
    cells = []
    for cached in sorted({cost.prefix_cache for cost in costs}, reverse=True):
        own = [by_key[cached, length] for length in lengths]
        name = "on" if cached else "off"
        cells.append((f"{name}, min", *(f"{cost.min_ms:.2f}" for cost in own)))
        cells.append((f"{name}, median", *(f"{cost.median_ms:.2f}" for cost in own)))
    title = f"Drafting {costs[0].num_draft_tokens} tokens, ms, by prefix length"
    return TextTable(title, ("prefix cache", *map(str, lengths)), tuple(cells))


def step_overhead_table(overheads: Sequence[StepOverhead]) -> TextTable:
    """Return the time of a step outside both forwards, by tree shape."""
    cells = [
        (
            f"{overhead.tree_shape}",
            f"{overhead.min_ms:.2f}",
            f"{overhead.median_ms:.2f}",
            f"{overhead.median_search_ms:.2f}",
        )
        for overhead in overheads
    ]
    title = f"Own overhead per step at {overheads[0].num_draft_tokens} draft tokens, ms"
    return TextTable(title, ("tree", "min", "median", "search, median"), tuple(cells))


def _draft_cost_growth(costs: Sequence[DraftCost]) -> str | None:
    """Compare drafting after the longest cached prefix with drafting after the shortest."""
    cached = sorted(
        (cost for cost in costs if cost.prefix_cache), key=lambda cost: cost.num_prefix_tokens
    )
    if len(cached) < 2:
        return None
    first, last = cached[0], cached[-1]
    return (
        f"Drafting behind {last.num_prefix_tokens} cached tokens takes"
        f" {last.median_ms / first.median_ms:.2f} times as long as behind"
        f" {first.num_prefix_tokens}."
    )


def notes(results: Results) -> list[str]:
    """Return the remarks below the tables: the machine, omissions, mismatches."""
    machine = results.machine
    lines = [
        f"{machine.cpu}, {machine.device} ({machine.dtype}), {machine.num_threads} threads,"
        f" torch {machine.versions['torch']}, transformers {machine.versions['transformers']}."
    ]
    if results.skipped:
        lines.append(describe_skipped(results.skipped))
    lines += [f"{name} is missing: {reason}." for name, reason in results.missing.items()]
    if growth := _draft_cost_growth(results.draft_costs):
        lines.append(growth)
    for system, count in num_fallbacks(results.rows).items():
        lines.append(f"{system}: {count} steps had no draft because drafting failed.")
    return lines + describe_mismatches(results.mismatches)


def num_fallbacks(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of steps whose draft failed, for systems that have any."""
    return {
        row.system: row.costs.num_fallbacks
        for row in rows
        if row.family == ALL_FAMILIES and row.costs is not None and row.costs.num_fallbacks
    }


def describe_skipped(skipped: Sequence[tuple[int, int]]) -> str:
    """Return a sentence about the skipped turns."""
    return f"Turns skipped because they exceed the target's context: {len(skipped)}."


def describe_mismatches(mismatches: Sequence[Mismatch]) -> list[str]:
    """Return a line per system whose tokens differ, with the first difference."""
    lines = []
    for system in dict.fromkeys(mismatch.system for mismatch in mismatches):
        own = [mismatch for mismatch in mismatches if mismatch.system == system]
        first = own[0]
        lines.append(
            f"{system}: {len(own)} answers differ from plain's, first in question"
            f" {first.question_id}, turn {first.turn + 1}, token {first.position}."
        )
    return lines


def print_tables(tables: Sequence[TextTable], lines: Sequence[str], console: Console) -> None:
    """Print tables and the notes below them."""
    for table in tables:
        for part in table.to_rich(console.width):
            console.print(part)
    for line in lines:
        console.print(line, highlight=False)


def write_report(
    folder: Path,
    name: str,
    data: dict[str, Any],
    tables: Sequence[TextTable],
    lines: Sequence[str],
    console: Console,
) -> None:
    """Write NAME.json and NAME.md into an existing folder, and print the tables and lines."""
    text = json.dumps(data, indent=2, allow_nan=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    parts = [table.to_markdown() for table in tables]
    (folder / f"{name}.md").write_text("\n".join([*parts, *lines, ""]), encoding="utf-8")
    print_tables(tables, lines, console)
    console.print(f"Written to {folder}", highlight=False)
