"""Options of vLLM work, or their error says what to use instead."""

import json
import re

import pytest

from diffuspec.core.config import EngineConfig
from diffuspec.core.vllm_words import ALIASES, HINTS
from tests.cli.conftest import error_line
from tests.support.commands import options_of


def test_the_names_stand_for_options_that_serve_or_generate_has():
    assert set(ALIASES.values()) <= options_of("serve", "generate")
    assert {*ALIASES, *HINTS} & options_of("generate") == {"--seed"}  # serve has no --seed


@pytest.mark.parametrize("word", sorted(HINTS.keys() - {"--seed"}))
def test_what_is_no_option_is_answered_by_what_to_do(diffuspec, engine, word):
    line = error_line(diffuspec("generate", "Hi", word, "1"))
    assert line.startswith(f"{word} is not an option of this command: ")
    named = set(re.findall(r"--[a-z-]+", HINTS[word]))
    assert named <= options_of("serve", "generate", "batch") | {"--revision"}


def test_the_keys_that_the_answers_name_exist():
    keys = re.findall(r"key (\w+)\.(\w+) of --config", " ".join(HINTS.values()))
    assert keys
    for section, key in keys:
        assert key in EngineConfig.model_fields[section].annotation.model_fields


def test_the_model_is_the_target(diffuspec, engine):
    diffuspec("generate", "Hi", "--model", "models/m", "--max-model-len", "64")
    assert str(engine.last.config.target.path) == "models/m"
    assert engine.last.config.target.max_model_len == 64


def test_serve_takes_the_model_as_argument_or_option(diffuspec, tmp_path):
    nowhere = str(tmp_path / "nowhere")
    for arguments in ([nowhere], ["--model", nowhere], [f"--model={nowhere}"]):
        words = ("--max-num-seqs", "4", "--served-model-name", "m", "--port", "0")
        line = error_line(diffuspec("serve", *arguments, *words))
        assert line == f"target.path: model directory {nowhere} does not exist"
    both = error_line(diffuspec("serve", nowhere, "--target", nowhere))
    assert both == "give the target as the argument or by --target, not both"


@pytest.mark.parametrize(
    ("config", "kind", "length"),
    [
        ({"method": "ngram", "num_speculative_tokens": 16, "model": "ngram"}, "pld", 16),
        ({"method": "draft_model", "model": "DIR", "num_speculative_tokens": 4}, "sps", 4),
        ({"method": "suffix"}, "samd", None),
    ],
)
def test_a_speculative_config_chooses_drafter_and_length(diffuspec, engine, config, kind, length):
    result = diffuspec(
        *("generate", "Hi", "--target", "m", "--speculative-config", json.dumps(config))
    )
    assert result.exit_code == 0, result.stderr
    assert engine.last.config.drafter.kind == kind
    speculation = engine.last.config.speculation
    expected = ("cost_aware", None) if length is None else ("fixed", length)
    assert (speculation.policy, speculation.num_draft_tokens if length else None) == expected


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("ngram", "must be a JSON object such as"),
        ('{"method": "mtp"}', "method must be one of dflash, diffuspec, draft_model, eagle"),
        ("{}", "method must be one of"),
        ('{"method": "ngram", "prompt_lookup_max": 4}', "has no prompt_lookup_max here: max_ngram"),
        ('{"method": "ngram", "parts": 4}', "has no parts here: it can have method, model"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "an integer from 1, got 0"),
        ('{"method": "medusa", "model": 3}', "model must be a directory, got 3"),
    ],
)
def test_a_wrong_speculative_config_is_refused_by_its_key(diffuspec, engine, config, message):
    line = error_line(diffuspec("generate", "Hi", "--target", "m", "--speculative-config", config))
    assert line.startswith("--speculative-config") and message in line


def test_a_speculative_config_and_our_option_exclude_each_other(diffuspec, engine):
    config = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
    line = error_line(diffuspec("generate", "Hi", *config, "--draft-length", "8"))
    assert line == "--speculative-config and --draft-length exclude each other"


@pytest.mark.parametrize("command", ["generate", "serve"])
def test_help_fits_two_screens_and_another_option_shows_all(diffuspec, command):
    usual, everything = (diffuspec(command, name).stdout for name in ("--help", "--help-all"))
    assert len(usual.splitlines()) <= 48
    assert "--drafter" in usual and "--max-nodes" not in usual
    names = {name for name in options_of(command) if name.startswith("--")}
    assert all(name in everything for name in names)
