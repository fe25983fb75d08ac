"""Tables and files, from rows that are known."""

import io
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from diffuspec.bench.machine import cpu_model, describe_machine
from diffuspec.bench.overhead import DraftCost, StepOverhead
from diffuspec.bench.report import (
    Results,
    notes,
    print_tables,
    speed_table,
    time_table,
    write_report,
)
from diffuspec.bench.run import Mismatch
from diffuspec.bench.stats import compute_rows
from diffuspec.bench.text_table import TextTable
from diffuspec.core.types import StepStats
from tests.bench.conftest import make_record

SYSTEMS = ("plain", "paper", "transformers_greedy")


def make_results(mismatches: tuple[Mismatch, ...] = (), fallback: str | None = None) -> Results:
    step = StepStats(20, 20, 3, 4, 20, 0.2, 0.1, 0.4, 0.8, fallback)
    drafted = {"steps": (step,), "forward_seconds": 0.5}
    given: Any = ("plain", 2.0, {}), ("paper", 1.0, drafted), ("transformers_greedy", 2.5, {})
    records = [
        make_record(system, range(4), seconds, family=family, question_id=question_id, **more)
        for question_id, family in enumerate(("qa", "code"))
        for system, seconds, more in given
    ]
    return Results(
        machine=describe_machine(torch.device("cpu"), torch.float32),
        rows=tuple(compute_rows(records, SYSTEMS)),
        mismatches=mismatches,
        skipped=((9, 1),),
        draft_costs=tuple(
            DraftCost(cached, length, 20, 3, 1.0, 1.5)
            for cached in (True, False)
            for length in (100, 500)
        ),
        step_overheads=(StepOverhead("path", 20, 3, 0.5, 0.75, 0.25),),
    )


def test_the_speed_table_compares_the_systems() -> None:
    table = speed_table(make_results().rows, ())
    assert table.title == "Speed over the six Spec-Bench families (1 questions, 4 tokens)"
    assert table.cells == (
        ("plain", "2.0", "1.00x", "1.00x", "1.00", "yes"),
        ("paper", "4.0", "2.00x", "2.00x", "4.00", "yes"),
        ("transformers_greedy", "1.6", "0.80x", "0.80x", "1.00", "yes"),
    )


def test_the_time_table_is_about_our_systems() -> None:
    table = time_table(make_results().rows)
    assert table.cells == (("paper", "20.0%", "10.0%", "40.0%", "30.0%", "300.00", "100.00"),)


def test_tokens_that_differ_are_counted_and_located() -> None:
    mismatches = tuple(Mismatch("paper", number, 1, 0, 17) for number in (3, 4))
    results = make_results(mismatches)
    marks = [row[-1] for row in speed_table(results.rows, mismatches).cells]
    assert marks == ["yes", "no: 2", "yes"]
    expected = "paper: 2 answers differ from plain's, first in question 3, turn 2, token 17."
    assert expected in notes(results)


def test_notes_report_skipped_turns_and_fallbacks() -> None:
    lines = notes(make_results(fallback="drafter_error"))
    assert "Turns skipped because they exceed the target's context: 1." in lines
    assert "paper: 2 steps had no draft because drafting failed." in lines


def test_files_parse_back(tmp_path: Path) -> None:
    results = make_results((Mismatch("paper", 3, 1, 0, 17),))
    tables, lines = results.tables(), notes(results)
    write_report(tmp_path, "results", results.to_json(), tables, lines, Console(quiet=True))
    data = json.loads((tmp_path / "results.json").read_text())
    rows = {(row["family"], row["system"]): row for row in data["rows"]}
    assert [*rows] == [*itertools.product(("qa", "code", "spec_bench", "all"), SYSTEMS)]
    paper, greedy = rows["all", "paper"], rows["qa", "transformers_greedy"]
    expected = {
        "num_questions": 2,
        "num_output_tokens": 8,
        "seconds": 2.0,
        "tokens_per_second": 4.0,
        "speedup": 2.0,
        "mean_acceptance_length": 4.0,
        "num_accepted_tokens": 6,
        "draft_share": 0.2,
        "num_fallbacks": 0,
    }
    assert {key: paper[key] for key in expected} == expected
    assert greedy.keys() == paper.keys()
    assert greedy["verify_share"] is None
    assert data["mismatches"][0]["position"] == 17
    assert data["skipped"] == [{"question_id": 9, "turn": 1}]
    assert len(data["draft_costs"]) == 4
    assert data["machine"]["num_threads"] == torch.get_num_threads()
    assert torch.__version__.startswith(data["machine"]["versions"]["torch"])  # 2.13.0+cpu


def test_markdown_has_every_table_with_as_many_cells_as_columns(tmp_path: Path) -> None:
    results = make_results()
    tables, lines = results.tables(), notes(results)
    write_report(tmp_path, "results", results.to_json(), tables, lines, Console(quiet=True))
    text = (tmp_path / "results.md").read_text()
    for table in results.tables():
        assert f"**{table.title}**" in text
    blocks = [[line for line in b.splitlines() if line.startswith("|")] for b in text.split("**")]
    for block in filter(None, blocks):
        assert len({line.count("|") for line in block}) == 1
    assert "| on, min | 1.00 | 1.00 |" in text
    assert "| path | 0.50 | 0.75 | 0.25 |" in text
    assert "cached tokens takes 1.00 times as long as behind" in text


def test_tables_fit_80_columns_and_lose_nothing() -> None:
    results = make_results()
    console = Console(file=io.StringIO(), width=80)
    print_tables(results.tables(), notes(results), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert "transformers_greedy" in text and "2.00x" in text


def test_headings_of_the_terminal_are_broken_at_spaces_or_else_underscores() -> None:
    [table] = TextTable("", ("a b_c", "cost_aware_path"), (("1", "2"),)).to_rich()
    assert [column.header for column in table.columns] == ["a\nb_c", "cost\naware\npath"]


def test_a_table_that_a_line_has_no_room_for_is_printed_in_parts_with_whole_figures() -> None:
    columns = ("system", *(f"family_{number}" for number in range(12)))
    cells = tuple(
        (name, *(f"{10 * row + number}.25 ± 0.5" for number in range(12)))
        for row, name in enumerate(("plain", "cost_aware_best_first"))
    )
    for width in range(40, 200):
        console = Console(file=io.StringIO(), width=width)
        print_tables([TextTable("Speed-up", columns, cells)], [], console)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= width and "…" not in text
        assert all(figure in text for row in cells for figure in row)
        assert text.count("cost_aware_best_first") == text.count("Speed-up")


def test_the_machine_is_described(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\n")
    assert cpu_model(cpuinfo) == "Some CPU @ 2 GHz"
    assert cpu_model(tmp_path / "none")
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/diffuspec", "bench", "--out", "a b"])
    machine = describe_machine(torch.device("cpu"), torch.float32)
    assert machine.command_line == "diffuspec bench --out 'a b'"
