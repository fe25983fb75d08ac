"""`diffuspec plan`: its options, and a small plan; what it simulates is tested in tests/bench."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffuspec.bench.planning import plan
from tests.bench.planning.test_plan import Here
from tests.cli.conftest import error_line

Run = Callable[..., Any]
QWEN = ("plan", "--target", "Qwen2.5-32B")
DRAFTED = (*QWEN, "--drafter", "Dream-7B")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("plan",), "give --target, the model to plan for, or --pair"),
        ((*QWEN, "--gpu", "abacus"), "--gpu must be a100, h100, h200, l4, l40s or cpu"),
        (DRAFTED, "--acceptance is missing"),
        ((*DRAFTED, "--acceptance", "99"), "--acceptance must be from 1 to 30, got 99"),
        ((*DRAFTED, "--acceptance", "none.jsonl"), "none.jsonl"),
        ((*DRAFTED, "--acceptance", "2", "--family", "qa"), "--family has no effect"),
        ((*QWEN, "--shared-tokens", "400"), "--shared-tokens must be below half"),
        ((*QWEN, "--at-a-time", "1000"), "--at-a-time must have a number up to"),
        ((*QWEN, "--engines", "17"), "--engines must be 0, or from 1 to 16: "),
        ((*QWEN, "--engines", "1", "--drafter-gpus", "2"), "from 2 to 32: "),
        (("plan", "record"), "what drafts is missing: give --pair"),
    ],
)
def test_what_cannot_be_planned_is_named(diffuspec: Run, tmp_path: Path, arguments, named):
    options = () if arguments[-1] == "record" else ("--out", tmp_path)
    assert named in error_line(diffuspec(*arguments, *options))


@pytest.mark.parametrize(
    "rows",
    [[], [{"at": 0}], [{"at": 0, "prompt_tokens": 1, "answer_tokens": 5}]],
    ids=["empty", "without lengths", "too short"],
)
def test_a_wrong_trace_is_refused(diffuspec: Run, tmp_path: Path, rows):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert str(path) in error_line(diffuspec(*QWEN, "--trace", path, "--out", tmp_path))


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", lambda *_, **__: Here())
    for name in ("_NUM_REQUESTS", "_NUM_PLAIN", "_NUM_AT_RATE", "_LEAST_REQUESTS"):
        monkeypatch.setattr(plan, name, 4)


@pytest.mark.usefixtures("few_requests")
def test_a_plan_is_printed_and_written(diffuspec: Run, tmp_path: Path):
    load = ("--prompt-tokens", 16, "--answer-tokens", 4, "--at-a-time", "1,1000")
    options = ("--acceptance", "3", "--requests-per-second", 2, *load, "--out", tmp_path)
    printed = diffuspec(*DRAFTED, *options).stdout
    assert "For 2 requests/s: " in printed
    assert "Costs of Dream-7B: measured elsewhere, estimated, fitted." in printed
    assert f"--config {tmp_path / 'deploy.yaml'}" in printed
    results = json.loads((tmp_path / "plan.json").read_text())
    assert {one["placement"] for one in results["points"]} == {"off", "shared", "apart"}
    assert (tmp_path / "plan.png").exists()


@pytest.mark.usefixtures("few_requests")
def test_engines_of_another_make_get_a_draft_server_and_a_proposer(diffuspec: Run, tmp_path: Path):
    load = ("--prompt-tokens", 16, "--answer-tokens", 16, "--at-a-time", "1")
    options = ("--acceptance", "8", "--target-gpus", 2, "--engines", 4, *load, "--out", tmp_path)
    printed = diffuspec(*QWEN, "--drafter", "Fast_dLLM_v2_1.5B", *options).stdout
    assert "with a draft server for vLLM or the like on 2.25 GPU" in printed
    assert "draft-server --drafter Fast_dLLM_v2_1.5B --tokenizer Qwen2.5-32B" in printed
    assert "vllm serve Qwen2.5-32B --tensor-parallel-size 2 --speculative-config" in printed
