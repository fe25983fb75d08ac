from pathlib import Path

import pytest

from diffuspec.bench.questions import SPEC_BENCH_FAMILIES, load_questions
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.errors import ConfigError
from diffuspec.drafters import kind_of
from diffuspec.models.loading.checkpoint import inspect_checkpoint
from diffuspec.models.ngram.kenlm_file import read_header
from diffuspec.pairs.smollm2 import DRAFTER, NGRAM, QUESTIONS, TARGET, smollm2_config


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which the model is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / TARGET).mkdir(parents=True)
    (tmp_path / TARGET / "config.json").write_text("{}")
    return tmp_path


def test_without_the_model_the_error_names_the_command_that_fetches_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"models/smollm2 is not in .*: run `make smollm2`"):
        smollm2_config()


def test_the_model_is_taken_from_the_working_directory_and_drafted_for_without_another(fetched):
    config = smollm2_config()
    assert config.target.path == fetched / TARGET
    assert config.drafter is not None
    assert not kind_of(config.drafter).has_model


def test_the_shipped_drafter_searches_with_its_ngram_model_where_its_embeddings_are(
    fetched, monkeypatch
):
    monkeypatch.setattr("diffuspec.pairs.smollm2._CHECKOUT", fetched)
    config = smollm2_config()
    assert isinstance(config.drafter, DiffuSpecConfig) and config.drafter.path == DRAFTER
    assert (config.search.ngram, config.search.retrieval) == (NGRAM, True)
    assert config.drafter.dtype == config.target.dtype
    assert config.speculation.drafter_weight == 0.7
    assert read_header(NGRAM).num_ngrams[0] > 30_000
    assert inspect_checkpoint(DRAFTER).diffusion.attention == "block_causal"


def test_there_are_questions_of_every_family():
    assert {q.family for q in load_questions(QUESTIONS)} == set(SPEC_BENCH_FAMILIES)
