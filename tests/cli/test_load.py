"""The options of `diffuspec load`; what it measures is tested in tests/bench."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import error_line

Run = Callable[..., Any]
NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--at-a-time 1,x", "--at-a-time must be numbers"),
        ("--at-a-time 0", "--at-a-time must be above 0"),
        ("--rates nan", "--rates must be above 0"),
    ],
)
def test_wrong_numbers_are_refused_by_name(diffuspec: Run, arguments: str, named: str) -> None:
    result = diffuspec("load", NOBODY, *arguments.split())
    assert named in error_line(result)


def test_a_load_of_nothing_is_refused(diffuspec: Run) -> None:
    line = error_line(diffuspec("load", NOBODY, "--at-a-time", ""))
    assert line == "nothing to measure: give --at-a-time or --rates a number"


def test_a_missing_matplotlib_is_named_before_anything_is_measured(
    diffuspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'diffuspec[bench]'" in error_line(diffuspec("load", NOBODY))


def test_what_is_no_url_is_named(diffuspec: Run, tmp_path: Path) -> None:
    result = diffuspec("load", "localhost:8000", "--out", tmp_path)
    assert result.exit_code == 2
    assert "error: the URL must begin with http://, got 'localhost:8000'" in result.stderr


def test_a_service_that_is_not_there_is_named(diffuspec: Run, tmp_path: Path) -> None:
    result = diffuspec("load", f"{NOBODY}/v1/", "--out", tmp_path)
    assert result.exit_code == 2
    assert f"error: {NOBODY} does not answer as OpenAI's API" in result.stderr
