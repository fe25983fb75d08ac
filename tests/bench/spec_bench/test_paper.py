"""Our figures in the form of the paper's table."""

from pathlib import Path
from statistics import fmean

import pytest

from diffuspec.bench.plots import plot_panels
from diffuspec.bench.spec_bench.paper import PAPER_ROWS, PAPER_TITLE, bars_of, paper_bars, table_1
from diffuspec.bench.stats import compute_rows
from tests.bench.conftest import make_record
from tests.bench.test_plots import coloured_share

RECORDS = [
    make_record(system, range(4), seconds, family=family, question_id=i, num_steps=steps)
    for i, (family, seconds) in enumerate((("qa", 1.0), ("rag", 2.0)))
    for system, seconds, steps in (("plain", 2 * seconds, 4), ("pld", seconds, 2))
]
ROWS = compute_rows(RECORDS, ("plain", "pld"))


def test_ours_and_the_papers_are_two_tables() -> None:
    ours, papers = table_1(ROWS, "Measured here: tiny")
    assert ours.title == "Measured here: tiny"
    assert ours.columns == ("system", "QA", "RAG", "MAT", "mean")
    assert ours.cells[1] == ("pld", "2.00x", "2.00x", "2.00", "2.00x")
    assert papers.title == PAPER_TITLE and len(papers.columns) == 9
    assert ("PLD", "1.83x", "1.29x", "2.76x", "1.87x", "1.55x", "2.37x", "2.11", "1.93x") in (
        papers.cells
    )


def test_the_papers_means_are_near_those_of_its_columns() -> None:
    for row in PAPER_ROWS.values():
        assert fmean(row.speedups) == pytest.approx(row.mean_speedup, abs=0.17), row.title


def test_the_plot_has_a_panel_for_each(tmp_path: Path) -> None:
    panels = {"Measured here": bars_of(ROWS), PAPER_TITLE: paper_bars()}
    plot_panels(panels, "mean speed-up", tmp_path / "plot.png")
    assert coloured_share(tmp_path / "plot.png") > 0.1
