"""Pairs of a target and a drafter that commands and configurations know by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import read_yaml, validate
from diffuspec.pairs import smollm2, tiny

__all__ = [
    "DEFAULT_PAIR",
    "PAIRS",
    "Pair",
    "fill_in_draft_server",
    "fill_in_preset",
    "find_pair",
    "load_config",
    "parse_config",
    "parse_file",
]

DEFAULT_PAIR = "tiny"


@dataclass(frozen=True, slots=True)
class Pair:
    """A named target, and how to draft for it."""

    target: Path
    questions: Path  # default questions of benchmark and demo
    load_config: Callable[[], EngineConfig]  # raises ConfigError if the models are missing
    num_threads: int | None  # best number of CPU threads; None: torch's default
    other_drafters: Callable[[], Mapping[str, dict[str, object]]]  # sections by kind


PAIRS = {
    "tiny": Pair(
        tiny.TARGET,
        tiny.QUESTIONS,
        tiny.tiny_config,
        1,  # too small to benefit from more threads
        tiny.other_drafters,
    ),
    "smollm2": Pair(
        smollm2.TARGET, smollm2.QUESTIONS, smollm2.smollm2_config, None, smollm2.other_drafters
    ),
}


def find_pair(name: object, option: str) -> Pair:
    """Find the pair named by an option. Raises ConfigError."""
    if not isinstance(name, str) or name not in PAIRS:
        raise ConfigError(f"{option} must be {' or '.join(PAIRS)}, got {name!r:.80}")
    return PAIRS[name]


def load_config(path: Path) -> EngineConfig:
    """Read an engine's YAML file; see `parse_file`."""
    return parse_file(read_yaml(path))


def parse_file(data: Mapping[str, Any]) -> EngineConfig:
    """Validate a file's content as `parse_config` does, but for its section `serve`."""
    engine = {name: section for name, section in data.items() if name != "serve"}
    return validate(EngineConfig, fill_in_preset(engine, "preset"), ["preset", "serve"])


def parse_config(data: Mapping[str, Any]) -> EngineConfig:
    """Validate an engine's configuration; missing keys come from the pair named by `preset`.

    Raises ConfigError naming the key, the value and what is valid.
    """
    return validate(EngineConfig, fill_in_preset(data, "preset"), ["preset"])


def fill_in_preset(engine: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an engine's sections, on top of those of the pair named by `preset`, if any.

    key: the full name of `preset`, for the message. Raises ConfigError.
    """
    given = dict(engine)
    if "preset" not in given:
        return given
    filled: dict[str, Any] = find_pair(given.pop("preset"), key).load_config().model_dump()
    for name, section in given.items():
        below = filled.get(name)
        if isinstance(below, dict) and isinstance(section, dict):
            is_other_kind = section.get("kind", below.get("kind")) != below.get("kind")
            section = section if is_other_kind else {**below, **section}
        filled[name] = section
    return filled


def fill_in_draft_server(server: Mapping[str, Any]) -> dict[str, Any]:
    """Return a draft server's sections, on top of those of the pair named by `preset`.

    Raises ConfigError.
    """
    given = dict(server)
    if "preset" not in given:
        return given
    engine = find_pair(given.pop("preset"), "preset").load_config()
    assert engine.drafter is not None, "a pair has a drafter"
    return {
        "drafter": engine.drafter.model_dump(),
        "search": engine.search.model_dump(),
        "drafter_weight": engine.speculation.drafter_weight,
        "tokenizer": engine.target.path,
        **given,
    }
