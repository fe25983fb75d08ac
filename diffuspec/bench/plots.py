"""Plots of results, as PNG files. Needs matplotlib, which is imported on first use.

The colours are Okabe and Ito's, which colour-blind readers can tell apart; hatches and markers
repeat the distinction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from diffuspec.bench.stats import Row, headline_family
from diffuspec.bench.systems.naming import BASELINE
from diffuspec.core.errors import MissingDependencyError

_DPI = 150
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
_HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_SHARES = (
    ("draft", "draft_share"),
    ("search", "search_share"),
    ("verify", "verify_share"),
    ("other", "other_share"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line; its xs are numbers or names of categories."""

    label: str
    xs: tuple[float | str, ...]
    ys: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar for one system, with its confidence interval if known."""

    label: str
    value: float
    interval: tuple[float, float] | None = None


def require_matplotlib() -> Any:
    """Return matplotlib.figure. Raises MissingDependencyError."""
    try:
        import matplotlib.figure
    except ImportError as error:
        raise MissingDependencyError(
            "plots need matplotlib: `pip install 'diffuspec[bench]'`"
        ) from error
    return matplotlib.figure


def plot_speedup(rows: Sequence[Row], path: Path) -> None:
    """Draw bars: speed-up over plain decoding, by family and system."""
    families = list(dict.fromkeys(row.family for row in rows))
    systems = [name for name in dict.fromkeys(row.system for row in rows) if name != BASELINE]
    values = {(row.system, row.family): row.speedup for row in rows}
    figure, axes = _figure(width=max(7.0, 1.2 + 1.2 * len(families)), height=4.6)
    width = 0.84 / max(len(systems), 1)
    for i, system in enumerate(systems):
        lefts = [place - 0.42 + (i + 0.5) * width for place in range(len(families))]
        heights = [values[system, family] for family in families]
        axes.bar(lefts, heights, width, label=system, **_bar_style(i))
    axes.grid(visible=False, axis="x")
    axes.axhline(1.0, color="black", linewidth=1, linestyle=":")
    axes.set_xticks(range(len(families)), [_wrap(family) for family in families])
    axes.set_ylabel("speed-up over plain decoding")
    _save(figure, axes, path, columns=3)


def plot_acceptance(curves: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw lines: the share of drafts accepted up to each position, by system."""
    lines = [
        Line(system, tuple(range(1, len(curve) + 1)), tuple(curve))
        for system, curve in curves.items()
        if curve
    ]
    figure, axes = _figure(width=7.0, height=4.6)
    _draw_lines(axes, lines)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of drafts accepted up to it")
    _save(figure, axes, path, columns=3)


def plot_time_share(rows: Sequence[Row], path: Path) -> None:
    """Draw stacked bars: the shares of an answer's time, for each of our systems."""
    family = headline_family(rows)
    own = [row for row in rows if row.family == family and row.costs is not None]
    figure, axes = _figure(width=7.0, height=1.6 + 0.5 * len(own))
    lefts = [0.0] * len(own)
    for i, (label, name) in enumerate(_SHARES):
        widths = [getattr(row.costs, name) for row in own]
        bars = axes.barh(range(len(own)), widths, 0.7, left=lefts, label=label, **_bar_style(i))
        texts = [f"{width:.0%}" if width >= 0.06 else "" for width in widths]
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
        axes.bar_label(bars, texts, label_type="center", fontsize=8, bbox=box)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    for label in axes.texts:
        label.set_visible(bool(label.get_text()))
    axes.set_yticks(range(len(own)), [row.system for row in own])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("share of the time of an answer")
    _save(figure, axes, path, columns=4)


def plot_panels(panels: Mapping[str, Sequence[Bar]], label: str, path: Path) -> None:
    """Draw panels of bars side by side, with only their scale in common."""
    height = 1.6 + 0.32 * max(len(bars) for bars in panels.values())
    figure = require_matplotlib().Figure(figsize=(5.2 * len(panels), height), dpi=_DPI)
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    for i, (axes, (title, bars)) in enumerate(zip(grid, panels.items(), strict=True)):
        _dress(axes)
        places, values = range(len(bars)), [bar.value for bar in bars]
        axes.barh(places, values, 0.7, **_bar_style(i))
        for place, bar in zip(places, bars, strict=True):
            low, high = bar.interval or (bar.value, bar.value)
            axes.plot((low, high), (place, place), color="black", linewidth=1)
            axes.annotate(f" {bar.value:.2f}x", (high, place), va="center", fontsize=8)
        axes.set_yticks(places, [bar.label for bar in bars])
        axes.invert_yaxis()
        axes.axvline(1.0, color="black", linewidth=1, linestyle=":")
        axes.set_xlabel(label)
        axes.set_title(fill(title, 60), fontsize=9)
        axes.margins(x=0.14)
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)


def plot_sweep(
    title: str, parameter: str, panels: Mapping[str, Sequence[Line]], path: Path
) -> None:
    """Draw one panel per measure, side by side, over one parameter."""
    figure = require_matplotlib().Figure(figsize=(4.6 * len(panels), 4.2), dpi=_DPI)
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, lines) in zip(grid, panels.items(), strict=True):
        _dress(axes)
        _draw_lines(axes, lines)
        highest = max((y for line in lines for y in line.ys), default=0)
        axes.set_ylim(bottom=0, top=1.1 * highest or 1)
        axes.set_xlabel(parameter)
        axes.set_ylabel(name)
    figure.suptitle(title, y=0.98)
    handles, labels = grid[0].get_legend_handles_labels()
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.94)}
    figure.legend(handles, labels, ncols=len(labels), fontsize=9, frameon=False, **place)
    figure.tight_layout(rect=(0, 0, 1, 0.91))
    figure.savefig(path, dpi=_DPI)


def _draw_lines(axes: Any, lines: Sequence[Line]) -> None:
    for i, line in enumerate(lines):
        marker, colour = _MARKERS[i % len(_MARKERS)], _COLOURS[i % len(_COLOURS)]
        axes.plot(line.xs, line.ys, label=line.label, color=colour, marker=marker, markersize=5)


def _bar_style(index: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "hatch": _HATCHES[index % len(_HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.5,
    }


def _figure(width: float, height: float) -> tuple[Any, Any]:
    figure = require_matplotlib().Figure(figsize=(width, height), dpi=_DPI)
    axes = figure.subplots()
    _dress(axes)
    return figure, axes


def _dress(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def _save(figure: Any, axes: Any, path: Path, columns: int) -> None:
    """Put the legend above the axes and write the file."""
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    axes.legend(ncols=columns, fontsize=8, frameon=False, **place)
    figure.tight_layout()
    figure.savefig(path, dpi=_DPI)


def _wrap(family: str) -> str:
    return family.replace("_", "\n", 1)
