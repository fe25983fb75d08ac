"""Pairs of a target and a drafter that commands and configurations know by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.pairs import smollm2, tiny

__all__ = ["DEFAULT_PAIR", "PAIRS", "Pair", "find_pair"]

DEFAULT_PAIR = "tiny"


@dataclass(frozen=True, slots=True)
class Pair:
    """A target that has a name here, and how it is drafted for."""

    target: Path
    questions: Path  # asked by benchmark and demo unless others are given
    load_config: Callable[[], EngineConfig]  # raises ConfigError if the models are not there
    num_threads: int | None  # CPU threads that serve it best; None: torch's choice
    other_drafters: Callable[[], Mapping[str, dict[str, object]]]  # sections by kind


PAIRS = {
    "tiny": Pair(
        tiny.TARGET,
        tiny.QUESTIONS,
        tiny.tiny_config,
        1,  # too small for more
        tiny.other_drafters,
    ),
    "smollm2": Pair(
        smollm2.TARGET, smollm2.QUESTIONS, smollm2.smollm2_config, None, smollm2.other_drafters
    ),
}


def find_pair(name: object, option: str) -> Pair:
    """Return the pair that an option names. Raises ConfigError."""
    if not isinstance(name, str) or name not in PAIRS:
        raise ConfigError(f"{option} must be {' or '.join(PAIRS)}, got {name!r:.80}")
    return PAIRS[name]
