"""What takes long is told as it begins, on a terminal."""

from __future__ import annotations

import sys

import typer
from typer.testing import CliRunner

from diffuspec.cli.command import Command
from diffuspec.telemetry.logs import stages


def work() -> None:
    stages.info("loading %s (%d MB)", "a model", 12)


def test_stages_are_lines_on_a_terminal_and_nothing_elsewhere(monkeypatch):
    app = typer.Typer()
    app.command(cls=Command)(work)
    assert CliRunner().invoke(app).stderr == ""
    monkeypatch.setattr("diffuspec.cli.command.is_terminal", lambda stream: stream is sys.stderr)
    assert CliRunner().invoke(app).stderr == "loading a model (12 MB) ...\n"
    assert not stages.handlers
