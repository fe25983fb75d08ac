"""The configuration of the embedded pair."""

import importlib.util

import pytest

from diffuspec import Engine, SamplingParams, SpeculationParams
from diffuspec.core.errors import ConfigError
from diffuspec.pairs import tiny

CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def test_without_the_scorer_the_drafter_works_without_an_ngram_model_and_warns(monkeypatch, caplog):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = tiny.tiny_config()
    assert config.search.ngram is None and "scorer was not compiled" in caplog.text
    sampling = SamplingParams(max_tokens=16)
    with Engine.from_config(config) as engine:
        [answer] = engine.generate([CHAT], sampling, SpeculationParams(policy="fixed"))
        [plain] = engine.generate([CHAT], sampling, SpeculationParams(policy="off"))
    assert answer.token_ids == plain.token_ids
    assert answer.stats.mean_acceptance_length > 1


def test_missing_weights_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(tiny, "TARGET", tmp_path)
    with pytest.raises(ConfigError, match="the embedded weights are missing"):
        tiny.tiny_config()
