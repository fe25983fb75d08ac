"""`python -m benchmarks.abuse` on a real service with keys, for seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.abuse import run
from benchmarks.abuse.__main__ import app

pytestmark = pytest.mark.process


def test_a_service_with_keys_stands_an_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "_IDLE_SECONDS", 0.5)
    monkeypatch.setattr(run, "_REST_SECONDS", 0.1)
    chosen = ("trailer", "deadly", "template", "guessed")
    only = [argument for name in chosen for argument in ("--only", name)]
    result = CliRunner().invoke(app, ["--service", "serve", *only, "--out", str(tmp_path)])
    assert "expected" not in result.stdout
    table = (tmp_path / "serve.md").read_text()
    for row in (
        "| a key in a chunk's trailer | 401 invalid_api_key |",
        "| a template's tokens in a user's text | 2 x text |",
        "| another key's prompt, guessed by cached_tokens | nothing told |",
    ):
        assert row in table
    assert "under attack" in result.stdout


def test_a_choice_that_names_no_attack_is_refused(tmp_path: Path):
    result = CliRunner().invoke(app, ["--only", "nonsense", "--out", str(tmp_path)])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "no attack has 'nonsense' in its name; they are: 200,000 stop strings" in said
