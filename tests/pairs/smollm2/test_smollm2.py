from __future__ import annotations

from pathlib import Path

import pytest

from diffuspec.bench.questions import SPEC_BENCH_FAMILIES, load_questions
from diffuspec.core.errors import ConfigError
from diffuspec.drafters import kind_of
from diffuspec.pairs.smollm2 import QUESTIONS, TARGET, smollm2_config


def test_without_the_model_the_error_names_the_command_that_fetches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"models/smollm2 is not in .*: run `make smollm2`"):
        smollm2_config()


def test_the_model_is_taken_from_the_working_directory_and_drafted_for_without_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / TARGET).mkdir(parents=True)
    (tmp_path / TARGET / "config.json").write_text("{}")
    config = smollm2_config()
    assert config.target.path == tmp_path / TARGET
    assert config.drafter is not None
    assert not kind_of(config.drafter).has_model


def test_there_are_questions_of_every_family() -> None:
    assert {q.family for q in load_questions(QUESTIONS)} == set(SPEC_BENCH_FAMILIES)
