"""The command as a process of its own: exit codes, standard streams, signals, pipes."""

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
from tests.support.forked import forked

pytestmark = pytest.mark.process

Run = Callable[..., Any]

# `diffuspec generate Hi` over an engine that never stops talking, and without torch starts at once.
ENDLESS = """
import asyncio, contextlib, signal, sys, types

import numpy as np

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts beside it ignores it

class Engine(contextlib.nullcontext):
    from_config = classmethod(lambda cls, config, tracer: cls())
    __enter__ = lambda self: self
    info = types.SimpleNamespace(max_model_len=512)
    encode = lambda self, prompt: np.arange(3)

    async def stream(self, prompt, sampling):
        while True:
            yield RequestOutput((7,), 0, ("word\\n",), "word\\n", None, None, StepStats(0, 0, 0, 1))
            await asyncio.sleep(0.01)

module = sys.modules["diffuspec.engine.engine"] = types.ModuleType("diffuspec.engine.engine")
module.Engine, module.Completion, module.Prompt = Engine, object, object

from dataclasses import replace
from diffuspec.cli.app import app
from diffuspec.pairs import PAIRS, parse_config
from diffuspec.core.types import RequestOutput, StepStats

config = parse_config({"target": {"path": "tests"}})  # exists, and is not read
PAIRS["tiny"] = replace(PAIRS["tiny"], load_config=lambda: config)
app(args=["generate", "Hi"])
"""
ROOT = Path(diffuspec.__file__).parents[1]


def start(*command: str) -> Any:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )


REFUSED = """
import contextlib, io, sys
from diffuspec.cli.app import app

for line in sys.stdin.read().splitlines():
    *command, message = line.split("|")
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            app(args=command)
    except SystemExit as ended:
        assert ended.code == 2, (command, ended.code)
    assert message in said.getvalue(), (command, said.getvalue())
found = {'torch', 'transformers', 'matplotlib', 'ray'} & sys.modules.keys()
assert not found, found
"""


def test_wrong_options_are_refused_before_anything_large_is_imported() -> None:
    wrong = """
        generate|Hi|--temperatur|1|no such option: --temperatur
        generate|Hi|--temperature|-1|temperature must be
        generate|Hi|--target|nowhere|model directory nowhere does not exist
        generate|Hi|--ngram|nowhere|n-gram model nowhere does not exist
        bench|--suite|nope|--suite
        bench|--limit|-3|--limit
        bench|--pair|other|--pair
        bench|--target|nowhere|model directory nowhere does not exist
        serve|--port|99999|--port must be
        serve|--drafter|nowhere|model directory nowhere does not exist
        serve|--tool-call-parser|nope|--target|nowhere|tool_call_parser must be
        drafter|train|missing option
    """
    lines = "\n".join(line.strip() for line in wrong.strip().splitlines())
    with start("-c", REFUSED) as process:
        _, said = process.communicate(lines)
    assert process.returncode == 0, said


def test_without_a_standard_input_there_is_no_prompt():
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "diffuspec", "generate"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert error_line(ended) == "no prompt: standard input is closed"


@pytest.mark.timeout(300)  # importing torch takes long on a busy machine
def test_json_from_stdin_by_real_models(pair: tuple[Path, Path]) -> None:
    models = ["--target", str(pair[0]), "--drafter", str(pair[1])]
    options = ["--json", "--max-tokens", "16", "--ignore-eos", "--threads", "1"]
    with start(*forked("-m", "diffuspec", "generate", *models, *options)[1:]) as process:
        stdout, stderr = process.communicate("Hello\n")
    assert (process.returncode, stderr) == (0, "")
    answer = json.loads(stdout)
    assert len(answer["token_ids"]) == answer["statistics"]["num_output_tokens"] == 16
    assert answer["finish_reason"] == "length"


def test_interrupt_while_answering_is_one_line_and_exit_code_130():
    with start("-c", ENDLESS) as process:
        assert process.stdout.readline() == "word\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (130, "interrupted\n")


# Runs a module as a command, and interrupts it when it imports another one.
INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

command, imported = sys.argv[1:3]
sys.argv = [command, *sys.argv[3:]]

class Finder:
    def find_spec(name, path=None, target=None):
        if name == imported:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder)
runpy.run_module(command, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("command", "imported"),
    [
        ("diffuspec demo", "pydantic"),
        ("diffuspec demo", "typer"),
        ("diffuspec generate Hi", "torch"),
        ("deploy.demo", "typer"),
        ("deploy.demo", "ray"),
    ],
)
def test_interrupt_while_importing_is_one_line(command: str, imported: str) -> None:
    module, *arguments = command.split()
    with start("-c", INTERRUPTED_IMPORT, module, imported, *arguments) as process:
        _, stderr = process.communicate()
    assert stderr == "interrupted\n"
    assert process.returncode in (130, -signal.SIGINT)  # a shell shows 130 for both


def test_closed_pipe_ends_the_answer():
    with start("-c", ENDLESS) as process:
        assert process.stdout.readline() == "word\n"
        process.stdout.close()
        stderr = process.stderr.read()
    assert process.returncode != 0
    assert "Traceback" not in stderr


def test_missing_models_are_usage_errors(diffuspec: Run, tmp_path: Path) -> None:
    result = diffuspec("generate", "Hi", "--target", tmp_path / "nowhere")
    assert error_line(result) == f"target.path: model directory {tmp_path}/nowhere does not exist"


def test_version_and_help(diffuspec: Run) -> None:
    version = diffuspec("--version")
    assert (version.exit_code, version.stderr) == (0, "")
    assert version.stdout.startswith("diffuspec ")
    for command in ([], ["generate"], ["bench"], ["demo"], ["ngram", "build"]):
        help_text = diffuspec(*command, "--help")
        assert help_text.exit_code == 0
        assert "Usage: " in help_text.stdout
    assert "--draft-length" in diffuspec("generate", "--help-all").stdout
    assert "Examples" in diffuspec("ngram", "build", "--help").stdout


@pytest.mark.parametrize("command", [["ngram", "shrink"], ["answer"], ["--typo"]])
def test_unknown_commands_are_usage_errors(diffuspec: Run, command: list[str]) -> None:
    result = diffuspec(*command)
    assert command[-1] in error_line(result)


@pytest.mark.parametrize("command", [[], ["ngram"]])
def test_without_a_command_help_is_shown(diffuspec: Run, command: list[str]) -> None:
    result = diffuspec(*command)
    assert (result.exit_code, result.stderr) == (2, "")
    assert "Usage: " in result.stdout


def test_help_shows_flags_without_a_type(diffuspec: Run) -> None:
    [line] = [
        line for line in diffuspec("generate", "--help").stdout.splitlines() if "--quiet" in line
    ]
    assert "bool" not in line
