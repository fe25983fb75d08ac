"""The commands that train the pair."""

import pytest
from typer.testing import CliRunner

from recipes.tiny.train import app


def test_help_names_the_commands_in_order():
    text = CliRunner().invoke(app, ["--help"]).stdout
    names = ["tokenizer", "target", "answers", "drafter", "heads", "ngram", "export"]
    places = [text.index(f"\n    {name}") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("command", "missing", "first"),
    [
        ("target", "tokenizer", "tokenizer"),
        ("answers", "target", "target"),
        ("heads", "answers.jsonl", "answers"),
        ("ngram", "tokenizer", "tokenizer"),
        ("export", "target", "target"),
    ],
)
def test_a_command_names_the_one_to_run_before_it(command, missing, first, tmp_path):
    result = CliRunner().invoke(app, [command, "--run", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path / missing} is missing: run `{first}` first" in result.stderr
