"""Engines in processes of their own answer by lines of JSON, and their ends are explained."""

import sys
from pathlib import Path

import pytest

from benchmarks.studies.json_worker import started
from diffuspec.core.errors import ConfigError

SUMMER = """
import json, os, sys
print("loading", flush=True)
print(json.dumps({"is_ready": True}), flush=True)
for line in sys.stdin:
    numbers = json.loads(line)["numbers"]
    if not numbers:
        sys.exit("no numbers")
    print(json.dumps({"sum": sum(numbers) + int(os.environ["MORE"])}), flush=True)
"""


def test_a_request_is_answered_in_its_turn(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUMMER]
    with started("adder", command, {"MORE": "10"}, tmp_path / "log") as worker:
        assert worker.ask(numbers=[1, 2]) == {"sum": 13}
        assert worker.ask(numbers=[5]) == {"sum": 15}


def test_a_process_that_ended_is_named_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SUMMER]
    with (
        started("adder", command, {}, tmp_path / "log") as worker,
        pytest.raises(ConfigError, match="adder ended with exit code 1: no numbers"),
    ):
        worker.ask(numbers=[])


def test_a_process_that_ended_before_a_request_is_named_too(tmp_path: Path) -> None:
    program = "import os, sys; os.close(0); print('{}', flush=True); sys.exit('no memory')"
    with (
        started("adder", [sys.executable, "-c", program], {}, tmp_path / "log") as worker,
        pytest.raises(ConfigError, match="adder ended with exit code 1: no memory"),
    ):
        worker.ask(numbers=[1])


def test_a_process_that_does_not_become_ready_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no model')"]
    with (
        pytest.raises(ConfigError, match="adder ended with exit code 1: no model"),
        started("adder", command, {}, tmp_path / "log"),
    ):
        pass
