"""Where the token of a deployment comes from: a file goes before the variable."""

from pathlib import Path

import pytest

from actors.settings import parse_pipeline
from deploy.tokens import given_token, read_token
from diffuspec.core.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("of-a-file\n")
    return tmp_path / "token"


def pipeline(**rpc: object):
    return parse_pipeline({"engine": {"preset": "tiny"}, "rpc": rpc})


def test_an_option_takes_precedence_over_the_pipeline_s_file_and_that_over_the_variable(
    file, tmp_path, monkeypatch
):
    monkeypatch.setenv("DIFFUSPEC_TOKEN", "of-the-environment")
    (tmp_path / "other").write_text("of-another-file")
    assert given_token(pipeline(token_file=file), tmp_path / "other") == "of-another-file"
    assert given_token(pipeline(token_file=file)) == "of-a-file"
    assert given_token(pipeline()) == "of-the-environment"


def test_without_a_token_there_is_none_and_who_needs_one_is_told_how(monkeypatch):
    monkeypatch.delenv("DIFFUSPEC_TOKEN", raising=False)
    assert given_token(pipeline()) is None
    with pytest.raises(ConfigError, match="set DIFFUSPEC_TOKEN, or give --token-file"):
        read_token(pipeline())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "token must hold a token"),
        ("a b", "printable ASCII"),
        (None, "cannot read the token in"),
    ],
)
def test_a_file_without_a_token_is_an_error(tmp_path, text, message):
    if text is not None:
        (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match=message):
        given_token(pipeline(token_file=tmp_path / "token"))
