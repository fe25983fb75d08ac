"""Rows of the comparison of predicted with measured figures: kept in a file, and as a table."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from diffuspec.bench.text_table import TextTable

_SAME = 0.03  # tokens/s that differ by less may be in either order


@dataclass(frozen=True, slots=True)
class Figures:
    """What a load gets; medians over its requests, in seconds."""

    tokens_per_second: float
    per_token: float
    first_token: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A system under a load."""

    system: str
    load: str
    predicted: Figures
    measured: Figures

    def error(self, name: str) -> float:
        """Return the relative error of a predicted figure."""
        return float(getattr(self.predicted, name) / getattr(self.measured, name) - 1)


def compared_table(rows: Sequence[Compared]) -> TextTable:
    """Return tokens/s, milliseconds per token and to the first one: measured, predicted, error."""
    cells = [
        (
            f"{row.system}, {row.load}",
            *_cells(row, "tokens_per_second", 1, ".0f"),
            *_cells(row, "per_token", 1e3, ".2f"),
            *_cells(row, "first_token", 1e3, ".0f"),
        )
        for row in rows
    ]
    named = [(name, "plan", "off by") for name in ("tok/s", "TPOT", "TTFT")]
    columns = ("system, load", *itertools.chain(*named))
    return TextTable("Measured and predicted; times in milliseconds", columns, tuple(cells))


def _cells(row: Compared, name: str, scale: float, form: str) -> Iterator[str]:
    for figures in (row.measured, row.predicted):
        yield format(scale * getattr(figures, name), form)
    yield f"{row.error(name):+.0%}"


def summary(rows: Sequence[Compared]) -> Iterator[str]:
    """Yield a line for each figure, and one for the order of the systems."""
    for name in ("tokens_per_second", "per_token", "first_token"):
        errors = [abs(row.error(name)) for row in rows]
        yield f"{name}: off by {median(errors):.0%} in the median, {max(errors):.0%} at worst"
    pairs = [
        (one, other)
        for one, other in itertools.combinations(rows, 2)
        if one.load == other.load and abs(_ratio(one, other, "measured") - 1) > _SAME
    ]
    right = [
        (_ratio(one, other, "measured") > 1) == (_ratio(one, other, "predicted") > 1)
        for one, other in pairs
    ]
    yield f"order of systems at a load: {sum(right)} of {len(right)} pairs as measured"


def _ratio(one: Compared, other: Compared, which: str) -> float:
    return float(getattr(one, which).tokens_per_second / getattr(other, which).tokens_per_second)


def merged(path: Path, rows: Sequence[Compared]) -> list[Compared]:
    """Return the rows of earlier parts, and these."""
    found = {(row.system, row.load): row for row in rows}
    known: list[Compared] = []
    for row in json.loads(path.read_text("utf-8"))["rows"] if path.exists() else ():
        figures = Figures(**row["predicted"]), Figures(**row["measured"])
        earlier = Compared(row["system"], row["load"], *figures)
        known.append(found.pop((earlier.system, earlier.load), earlier))
    return [*known, *found.values()]
