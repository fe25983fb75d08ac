"""The options of the comparison with vLLM; tests/clients runs vLLM itself."""

import pytest
from typer.testing import CliRunner

from benchmarks.studies.vllm import app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--loads 1,x", "--loads must be numbers separated by commas, got '1,x'"),
        ("--systems ngrams", "must be among plain, ngram, suffix, diffuspec, got ngrams"),
    ],
)
def test_wrong_options_are_refused_by_name(arguments: str, message: str) -> None:
    result = CliRunner().invoke(app, arguments.split())
    assert result.exit_code == 2 and message in result.stderr
