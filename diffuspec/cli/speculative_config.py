"""vLLM's --speculative-config as our options."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from diffuspec.cli.options import EngineOptions
from diffuspec.core.errors import ConfigError

OPTION = "--speculative-config"
_KINDS = {  # vLLM's methods
    "diffuspec": "diffuspec",
    "dflash": "dflash",
    "draft_model": "sps",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "medusa": "medusa",
    "ngram": "pld",
    "suffix": "samd",
}
_KEYS = ("method", "model", "num_speculative_tokens")
_INSTEAD = {
    "prompt_lookup_max": "max_ngram_tokens of a drafter of the kind pld, in --config FILE.yaml",
    "prompt_lookup_min": "a shorter match is tried when a longer one is not there: leave it out",
    "draft_tensor_parallel_size": "a drafter runs on one GPU: leave it out",
    "max_model_len": "a drafter's context_tokens, in --config FILE.yaml",
}


def as_options(given: EngineOptions) -> EngineOptions:
    """Return the options with those that --speculative-config stands for. Raises ConfigError."""
    if given.speculative_config is None:
        return given
    config = _read(given.speculative_config)
    kind = _kind(config)
    model = None if kind == "pld" else config.get("model")  # vLLM's users write "ngram" there
    meant: dict[str, Any] = {
        "drafter": model,
        "drafter_kind": kind,
        "draft_length": _length(config),
    }
    for name, value in meant.items():
        if value is not None and getattr(given, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{OPTION} and {option} exclude each other")
    meant = {name: value for name, value in meant.items() if value is not None}
    return replace(given, speculative_config=None, **meant)


def _read(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ConfigError(
            f"{OPTION} must be a JSON object such as "
            f'{{"method": "ngram", "num_speculative_tokens": 16}}, got {text!r:.80}'
        )
    for key in config.keys() - {*_KEYS}:
        hint = _INSTEAD.get(key, f"it can have {', '.join(_KEYS)}")
        raise ConfigError(f"{OPTION} has no {key} here: {hint}")
    model = config.get("model")
    if model is not None and not isinstance(model, str):
        raise ConfigError(f"{OPTION}: model must be a directory, got {model!r:.80}")
    return config


def _kind(config: dict[str, Any]) -> str:
    method = config.get("method")
    if not isinstance(method, str) or method not in _KINDS:
        raise ConfigError(
            f"{OPTION}: method must be one of {', '.join(sorted(_KINDS))}, got {method!r:.80}; "
            "--drafter-kind names all drafters"
        )
    return _KINDS[method]


def _length(config: dict[str, Any]) -> str | None:
    number = config.get("num_speculative_tokens")
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ConfigError(
            f"{OPTION}: num_speculative_tokens must be an integer from 1, got {number!r:.80}"
        )
    return str(number)
