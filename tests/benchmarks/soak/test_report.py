"""The report of runs."""

import json
from io import StringIO

from rich.console import Console

from benchmarks.service import ServiceKind
from benchmarks.soak.client import End
from benchmarks.soak.kills import Kill, Kills
from benchmarks.soak.mixture import Kind
from benchmarks.soak.report import failures, tables, to_json
from benchmarks.soak.run import Run
from tests.benchmarks.soak.runs import good_run, outcome


def runs() -> list[Run]:
    killed = good_run(service=ServiceKind.RAY, kills=Kills([Kill("drafter", 100.0, 104.0)]))
    killed.record(outcome(Kind.TOOL, name="tool 2", end=End.WRONG, reason="it differs"))
    return [good_run(), killed]


def test_the_table_has_a_row_for_each_check_and_a_column_for_each_run():
    [checked, times] = tables(runs())
    assert checked.columns == ("", "serve, 8 clients", "ray, 8 clients")
    assert ("kills", "0", "1") in checked.cells
    assert ("answers", "4,000 right, 0 failed", "4,000 right, 1 failed FAILED") in checked.cells
    assert ("stream", "4,000 0.500 0.50", "4,000 0.500 0.50") in times.cells
    assert ("slow", "-", "-") in times.cells


def test_tables_are_plain_without_a_terminal():
    console = Console(file=StringIO(), width=100)
    for table in tables(runs()):
        console.print(*table.to_rich(console.width))
    assert isinstance(console.file, StringIO)
    assert "\x1b" not in console.file.getvalue()


def test_failures_name_the_run_and_the_check():
    assert failures(runs()) == ["ray, 8 clients: answers: wrong: tool 2: it differs"]


def test_json_has_the_same():
    [good, bad] = json.loads(json.dumps(to_json(runs())))
    assert (good["service"], good["clients"], good["seconds"]) == ("serve", 8, 900)
    assert all(check["reasons"] == [] for check in good["checks"])
    assert bad["requests"]["tool"] == {"wrong": 1}
    assert bad["kills"] == [{"role": "drafter", "seconds": 4.0}]
    assert bad["seconds_by_kind"] == {"stream": {"median": 0.5, "longest": 0.5}}
