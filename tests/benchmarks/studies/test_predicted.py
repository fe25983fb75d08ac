"""The comparison of a plan's figures with measured ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.studies.predicted_rows import (
    Compared,
    Figures,
    compared_table,
    merged,
    summary,
)


def compared(system: str, predicted: float, measured: float) -> Compared:
    return Compared(system, "4", Figures(predicted, 0.011, 0.05), Figures(measured, 0.010, 0.04))


ROWS = [compared("off", 110.0, 100.0), compared("on", 150.0, 200.0), compared("apart", 90, 102)]


def test_an_error_is_relative_to_what_was_measured():
    assert ROWS[0].error("tokens_per_second") == pytest.approx(0.1)
    assert ROWS[0].error("first_token") == pytest.approx(0.25)


def test_a_row_shows_both_and_the_error_in_80_columns():
    table = compared_table(ROWS)
    assert table.cells[1] == ("on, 4", "200", "150", "-25%", *table.cells[0][4:])
    assert table.cells[0][4:] == ("10.00", "11.00", "+10%", "40", "50", "+25%")
    assert len(table.to_rich(80)) == 1


def test_the_order_counts_pairs_of_systems_that_differ():
    *_, order = summary(ROWS)  # off and apart differ by 2 %
    assert order == "order of systems at a load: 2 of 2 pairs as measured"
    wrong = [*ROWS[:1], compared("on", 100.0, 200.0)]
    assert [*summary(wrong)][-1].endswith("0 of 1 pairs as measured")
    assert next(iter(summary(ROWS))) == "tokens_per_second: off by 12% in the median, 25% at worst"


def test_rows_of_earlier_parts_are_kept_and_measured_again_ones_replaced(tmp_path: Path):
    path = tmp_path / "predicted.json"
    assert merged(path, ROWS[:2]) == ROWS[:2]
    path.write_text(json.dumps({"rows": [asdict(row) for row in ROWS[:2]]}))
    again = [compared("on", 150.0, 160.0), ROWS[2]]
    assert merged(path, again) == [ROWS[0], *again]
