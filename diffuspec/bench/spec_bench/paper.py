"""Table 1 of the paper (arXiv 2510.02358), and our results in the same form.

The paper measured with Qwen2.5-32B (Medusa to EAGLE-2: Vicuna-33B) on an A100, so only the order
and ratios of systems can be compared with ours, which are in a table of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diffuspec.bench.plots import Bar
from diffuspec.bench.questions import SPEC_BENCH_FAMILIES
from diffuspec.bench.stats import Row, headline_family
from diffuspec.bench.text_table import TextTable

PAPER_TITLE = "Paper, Table 1: Qwen2.5-32B on an A100 (rows with *: Vicuna-33B)"

_TASKS = ("MT", "Trans", "Sum", "QA", "Math", "RAG")


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A system of the paper's table."""

    title: str
    speedups: tuple[float, ...]  # one for each family of SPEC_BENCH_FAMILIES
    acceptance_length: float
    mean_speedup: float


PAPER_ROWS: Mapping[str, PaperRow] = {
    "sps": PaperRow("SPS", (1.69, 1.64, 1.74, 1.50, 1.86, 1.62), 6.18, 1.67),
    "lookahead": PaperRow("Lookahead", (1.37, 1.16, 1.15, 1.33, 1.52, 1.21), 1.82, 1.30),
    "pld": PaperRow("PLD", (1.83, 1.29, 2.76, 1.87, 1.55, 2.37), 2.11, 1.93),
    "token_recycling": PaperRow("Recycling", (2.15, 1.85, 2.03, 2.06, 2.45, 1.83), 3.13, 2.07),
    "samd": PaperRow("SAMD", (1.99, 1.54, 3.38, 2.44, 1.63, 3.27), 2.18, 2.35),
    "diffuspec": PaperRow("DiffuSpec", (3.09, 3.38, 2.41, 3.03, 4.02, 2.38), 6.99, 3.08),
    "medusa": PaperRow("Medusa *", (1.69, 1.61, 2.24, 1.74, 2.35, 2.48), 2.31, 2.02),
    "hydra": PaperRow("Hydra *", (2.48, 2.08, 2.57, 2.14, 3.25, 2.74), 3.23, 2.54),
    "eagle": PaperRow("EAGLE *", (2.68, 2.21, 2.68, 2.24, 3.26, 2.50), 3.37, 2.76),
    "eagle2": PaperRow("EAGLE-2 *", (3.45, 2.49, 2.94, 2.52, 3.70, 2.58), 4.02, 2.95),
}


def table_1(rows: Sequence[Row], title: str) -> list[TextTable]:
    """Return our results in the form of the paper's table, and the paper's for the same systems."""
    systems = list(dict.fromkeys(row.system for row in rows))
    found = {(row.system, row.family): row for row in rows}
    headline = headline_family(rows)
    families = [f for f in SPEC_BENCH_FAMILIES if any(row.family == f for row in rows)]
    columns = (
        "system",
        *(dict(zip(SPEC_BENCH_FAMILIES, _TASKS, strict=True))[f] for f in families),
    )
    ours = [
        _cells(
            system,
            [found[system, family].spec_bench_speedup for family in families],
            found[system, headline].mean_acceptance_length,
            found[system, headline].spec_bench_speedup,
        )
        for system in systems
    ]
    theirs = [
        _cells(row.title, row.speedups, row.acceptance_length, row.mean_speedup)
        for system, row in PAPER_ROWS.items()
    ]
    last = ("MAT", "mean")
    return [
        TextTable(title, (*columns, *last), tuple(ours)),
        TextTable(PAPER_TITLE, ("system", *_TASKS, *last), tuple(theirs)),
    ]


def bars_of(rows: Sequence[Row]) -> list[Bar]:
    """Return the mean speed-up of each of our systems, as Spec-Bench defines it."""
    headline = headline_family(rows)
    return [
        Bar(row.system, row.spec_bench_speedup, row.intervals.spec_bench_speedup)
        for row in rows
        if row.family == headline
    ]


def paper_bars() -> list[Bar]:
    """Return the paper's mean speed-ups."""
    return [Bar(row.title, row.mean_speedup) for row in PAPER_ROWS.values()]


def _cells(
    name: str, speedups: Sequence[float], acceptance_length: float, mean: float
) -> tuple[str, ...]:
    figures = (f"{speedup:.2f}x" for speedup in speedups)
    return name, *figures, f"{acceptance_length:.2f}", f"{mean:.2f}x"
