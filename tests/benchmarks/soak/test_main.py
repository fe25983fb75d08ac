"""`python -m benchmarks.soak` on a real service, for seconds."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import service
from benchmarks.service import ServiceKind
from benchmarks.soak.__main__ import app
from benchmarks.soak.run import Plan, soak
from diffuspec.core.errors import WorkerError

pytestmark = pytest.mark.process


def test_a_service_passes_a_soak_of_seconds(tmp_path: Path):
    report = tmp_path / "report.json"
    arguments = ("0.05", "--service", "serve", "--clients", "4", "--limit", "1")
    written = ("--out", str(tmp_path), "--json", str(report))
    result = CliRunner().invoke(app, [*arguments, *written])
    [run] = json.loads(report.read_text())
    assert [check for check in run["checks"] if check["reasons"]] == []
    assert result.exit_code == 0
    assert "Soak" in result.stdout
    assert run["requests"]["stream"]["answered"] > 0
    assert (tmp_path / "serve-4.log").exists()


async def test_a_service_that_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    command = ("-c", "import sys; sys.exit('no such model')")
    monkeypatch.setattr(service, "COMMANDS", {ServiceKind.SERVE: command})
    with pytest.raises(WorkerError, match=r"does not start \(.*serve-1.log\): no such model"):
        await soak(Plan(ServiceKind.SERVE, 1, 1.0, seed=0), tmp_path, lambda text: None)


async def test_a_service_that_ends_during_the_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ready = Path(__file__).with_name("ends_soon.py")
    monkeypatch.setattr(service, "COMMANDS", {ServiceKind.SERVE: (str(ready),)})
    run = await soak(Plan(ServiceKind.SERVE, 1, 60.0, seed=0), tmp_path, lambda text: None)
    [broken, ended] = run.problems
    assert broken.startswith("plain decoding fails: ")
    assert ended.startswith("ended with status 3")  # noticed before the signal, or just after
