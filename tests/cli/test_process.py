"""The command as a process of its own: exit codes, standard streams, signals, pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import diffuspec
from tests.cli.conftest import error_line

Run = Callable[..., Any]

# `diffuspec generate Hi` over an engine that never stops talking, and without torch starts at once.
ENDLESS = """
import asyncio, contextlib, signal, sys, types

import numpy as np

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts beside it ignores it

class Engine(contextlib.nullcontext):
    from_config = classmethod(lambda cls, config, tracer: cls())
    __enter__ = lambda self: self
    encode = lambda self, prompt: np.arange(3)

    async def stream(self, prompt, sampling):
        while True:
            yield RequestOutput((7,), 0, ("word\\n",), "word\\n", None, None, StepStats(0, 0, 0, 1))
            await asyncio.sleep(0.01)

module = sys.modules["diffuspec.engine"] = types.ModuleType("diffuspec.engine")
module.Engine, module.Completion, module.Prompt = Engine, object, object

from diffuspec.cli import app, options
from diffuspec.core.config import parse_config
from diffuspec.core.types import RequestOutput
from diffuspec.core.types import StepStats

options.tiny_config = lambda: parse_config({"target": {"path": "nowhere"}})
app(args=["generate", "Hi"])
"""
ROOT = Path(diffuspec.__file__).parents[1]


def start(*command: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


def test_without_a_standard_input_there_is_no_prompt() -> None:
    command = [sys.executable, "-m", "diffuspec", "generate"]
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert error_line(ended) == "no prompt: standard input is closed"


@pytest.mark.timeout(300)  # importing torch takes long on a busy machine
def test_json_from_stdin_by_real_models(pair: tuple[Path, Path]) -> None:
    models = ["--target", str(pair[0]), "--drafter", str(pair[1])]
    options = ["--json", "--max-tokens", "16", "--ignore-eos", "--threads", "1"]
    with start("-m", "diffuspec", "generate", *models, *options) as process:
        stdout, stderr = process.communicate("Hello\n")
    assert (process.returncode, stderr) == (0, "")
    answer = json.loads(stdout)
    assert len(answer["token_ids"]) == 16
    assert answer["finish_reason"] == "length"
    assert answer["statistics"]["num_output_tokens"] == 16


def test_interruption_ends_with_130_and_no_traceback() -> None:
    with start("-c", ENDLESS) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "word\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr.strip() == ""


def test_reader_that_goes_away_ends_the_answer() -> None:
    with start("-c", ENDLESS) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "word\n"
        process.stdout.close()
        stderr = process.stderr.read()
    assert process.returncode != 0
    assert "Traceback" not in stderr


def test_missing_models_are_the_users_mistake(diffuspec: Run, tmp_path: Path) -> None:
    result = diffuspec("generate", "Hi", "--target", tmp_path / "nowhere")
    assert error_line(result) == f"model directory {tmp_path}/nowhere does not exist"
    assert result.exit_code == 2


def test_version_and_help(diffuspec: Run) -> None:
    version = diffuspec("--version")
    assert (version.exit_code, version.stderr) == (0, "")
    assert version.stdout.startswith("diffuspec ")
    for command in ([], ["generate"], ["bench"], ["demo"], ["ngram", "build"]):
        help_text = diffuspec(*command, "--help")
        assert help_text.exit_code == 0
        assert "Usage: " in help_text.stdout
    assert "--draft-length" in diffuspec("generate", "--help").stdout
    assert "Examples" in diffuspec("ngram", "build", "--help").stdout


@pytest.mark.parametrize("command", [["ngram", "shrink"], ["answer"], ["--typo"]])
def test_unknown_commands_are_the_users_mistake(diffuspec: Run, command: list[str]) -> None:
    result = diffuspec(*command)
    assert result.exit_code == 2
    assert command[-1] in result.stderr
