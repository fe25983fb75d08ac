"""The command: exit codes, summary, interrupts, over a service on loopback with fake roles."""

import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from deploy.batch import _finish, app
from deploy.batches.command import Report
from deploy.batches.outputs import locked
from deploy.batches.results import BatchStoppedError
from deploy.batches.summary import Counts
from diffuspec.serve.settings import ServeSettings
from tests.support.batches import chat, results_in, texts
from tests.support.forked import forked
from tests.support.service import MODEL, Service, fake_engine, serving

ROOT = Path(__file__).parents[2]
Batch = Callable[..., Any]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving(fake_engine, ServeSettings()) as service:
        yield service


@pytest.fixture
def batch(service: Service, tmp_path: Path) -> Batch:
    """Answer rows in this process, `batch(row, ..., limit=3)`."""

    def run(*rows: object, **given: object) -> Any:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
        files = {"input": tmp_path / "in.jsonl", "output": tmp_path / "out.jsonl"}
        values: dict[str, object] = {**files, "address": service.url, "max_tokens": 8, **given}
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]
        return CliRunner().invoke(app, [one.removesuffix("=True") for one in arguments])

    return run


def figures(output: str) -> dict[str, str]:
    """Return the summary's rows by name."""
    rows = [line.rsplit(maxsplit=1) for line in output.splitlines() if line.startswith(" ")]
    return {row[0].strip(): row[1] for row in rows if len(row) == 2}


def test_all_rows_answered_is_exit_code_0_with_a_summary(batch, tmp_path):
    request = {"custom_id": "a", "url": "/v1/chat/completions", "method": "POST"}
    fixed = {"policy": "fixed", "num_draft_tokens": 8}  # drafts, however busy the machine is
    body = chat("Hi", model=MODEL, max_tokens=5, temperature=0, speculation=fixed)
    result = batch({**request, "body": body}, chat("b", speculation=fixed), {"prompt": "c"})
    assert result.exit_code == 0, result.stderr
    first, second, third = results_in(tmp_path / "out.jsonl")
    assert (first["custom_id"], second["custom_id"]) == ("a", "line-2")
    assert first["response"]["body"]["usage"]["completion_tokens"] == 5
    assert third["response"]["body"]["object"] == "text_completion"
    shown = figures(result.stdout)
    counts = [shown[name] for name in ("rows answered", "rows failed", "output tokens")]
    assert counts == ["3", "0", "21"]
    assert float(shown["acceptance length"]) > 1
    assert str(tmp_path / "out.jsonl") in result.stdout


def test_questions_are_asked_turn_by_turn(batch, tmp_path):
    result = batch({"question_id": 81, "category": "writing", "turns": ["one", "two"]})
    assert result.exit_code == 0, result.stderr
    [only] = results_in(tmp_path / "out.jsonl")
    first, second = only["response"]["body"]["turns"]
    assert second["usage"]["prompt_tokens"] > first["usage"]["total_tokens"]


def test_failed_rows_are_exit_code_1_and_can_be_tried_again(batch, tmp_path):
    rows = [chat("a"), chat("b", temperature=99), chat("c")]
    result = batch(*rows)
    assert result.exit_code == 1
    assert figures(result.stdout)["rows failed"] == "1"
    failed = results_in(tmp_path / "out.jsonl")[1]["response"]
    assert (failed["status_code"], failed["body"]["error"]["param"]) == (400, "temperature")
    again = batch(*rows)
    assert again.exit_code == 1 and "3 (1 failed)" in again.stdout
    retried = batch(*rows, retry_failed=True)
    assert retried.exit_code == 1
    assert figures(retried.stdout)["rows failed"] == "1"
    assert len(results_in(tmp_path / "out.jsonl")) == 3


def test_a_limit_answers_the_first_rows_and_later_runs_the_others(batch, tmp_path):
    rows = [chat(str(number)) for number in range(5)]
    assert batch(*rows, limit=2).exit_code == 0
    assert len(results_in(tmp_path / "out.jsonl")) == 2
    result = batch(*rows, concurrency=2)
    assert figures(result.stdout)["rows answered"] == "3"
    assert len(texts(results_in(tmp_path / "out.jsonl"))) == 5
    assert batch(*rows, limit=1).exit_code == 0


def test_an_output_made_with_other_options_is_refused(batch):
    assert batch(chat("a")).exit_code == 0
    result = batch(chat("a"), max_tokens=9)
    assert result.exit_code == 2 and "or of other options" in result.stderr
    assert batch(chat("a"), draft_length="off").exit_code == 0  # changes no answer


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"temperature": 99}, "temperature must be from 0 to 10, got 99"),
        ({"draft_length": "often"}, "--draft-length must be"),
        ({"max_nodes": 1000}, "max_nodes must be from 1 to 256"),
        ({"input": "nowhere.jsonl"}, "cannot read the input nowhere.jsonl"),
        ({"output": "/nowhere/out.jsonl"}, "cannot write the output /nowhere/out.jsonl"),
        ({"output": "/dev/null"}, "the output must be a file; /dev/null is a folder or"),
        ({"address": "http://127.0.0.1:9"}, "no endpoint at http://127.0.0.1:9"),
        ({"address": "localhost:8000"}, "--address must be auto or begin with http://, got"),
        ({"api_key_file": "/nowhere"}, "cannot read the API key in /nowhere"),
        ({"config": "deploy/pipeline.yaml"}, "--config and --address exclude each other"),
        ({"engine": "process"}, "--engine and --address exclude each other"),
        ({"address": "", "timeout": 9}, "--timeout has no effect without --address"),
        ({"shard_bytes": 9}, "--shard-bytes has no effect without --engine data"),
        ({"engine": "data"}, "--engine data takes no --address, --limit or --retry-failed"),
        ({"engine": "data", "address": "", "input": "a.csv"}, "that end in .jsonl, .parquet"),
        ({"address": "", "config": "/nowhere"}, "cannot read configuration /nowhere"),
    ],
)
def test_what_cannot_run_is_exit_code_2_and_one_line(batch, given, text):
    result = batch(chat("a"), **given)
    assert result.exit_code == 2
    assert text in result.stderr and result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_an_output_in_a_job_s_copy_of_the_folder_is_refused(batch, tmp_path, monkeypatch):
    copy = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    result = batch(chat("a"), output="out.jsonl")
    assert result.exit_code == 2 and "which Ray deletes" in result.stderr
    assert batch(chat("a")).exit_code == 0  # elsewhere


def test_an_address_may_end_in_v1(batch, service):
    assert batch(chat("a"), address=f"{service.url}/v1/").exit_code == 0


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_keeps_what_is_done_and_says_how_to_go_on(batch, service, tmp_path, number, code):
    rows = [chat(str(number), max_tokens=40) for number in range(60)]
    batch(*rows, limit=1, max_tokens=256)
    path = tmp_path / "out.jsonl"
    command = forked("-m", "deploy.batch", "--address", service.url, "--concurrency", 2)
    command += ["--input", str(tmp_path / "in.jsonl"), "--output", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "answering 59 rows\n"
        process.send_signal(number)
        _, stderr = process.communicate()
    assert process.returncode == code, stderr
    num_done = len(results_in(path))
    assert f"interrupted: {num_done} of 60 rows are in {path}; the same command" in stderr
    assert stderr.count("interrupted") == 1 and num_done < 60
    assert batch(*rows, max_tokens=256).exit_code == 0
    assert len(texts(results_in(path))) == 60


def test_an_output_is_one_batch_s(batch, tmp_path):
    """The system frees the lock of a process that is killed: see batches/test_kills.py."""
    path = tmp_path / "out.jsonl"
    with locked(path, path):
        result = batch(chat("a"))
    assert result.exit_code == 2
    assert result.stderr == f"error: the output {path} is in use by another batch\n"


def test_a_full_disk_names_the_file_and_says_that_the_same_command_goes_on() -> None:
    problem = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    report = Report(Counts(3), problem=problem)
    report.counts.now.num_rows = 2
    with pytest.raises(BatchStoppedError) as stopped:
        _finish(report, Path("out.jsonl"))
    message = str(stopped.value)
    assert message.startswith("cannot write out.jsonl: No space left on device (2 of 3")
    assert message.endswith("the same command goes on from there)")
