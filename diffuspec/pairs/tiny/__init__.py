"""The embedded default pair, so that everything runs for real on two CPU cores.

A target and a diffusion drafter of the real architectures, a few million weights each, trained by
the code in this package on a corpus that it makes itself, and an n-gram model over the same tokens.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from diffuspec.core.config import EngineConfig, parse_config
from diffuspec.core.errors import ConfigError

__all__ = ["DRAFTER", "NGRAM", "QUESTIONS", "TARGET", "WEIGHTS", "tiny_config"]

logger = logging.getLogger(__name__)

WEIGHTS = Path(__file__).parent / "weights"
TARGET = WEIGHTS / "target"
DRAFTER = WEIGHTS / "drafter"
NGRAM = WEIGHTS / "ngram.bin"
QUESTIONS = WEIGHTS / "questions.jsonl"


def tiny_config(**overrides: object) -> EngineConfig:
    """Return the configuration of the embedded pair; sections given by name replace its own.

    Without kenlm the drafter goes unassisted. Raises ConfigError when the weights are not there.
    """
    if not (TARGET / "model.safetensors").exists():
        raise ConfigError(f"the embedded weights are missing from {WEIGHTS}; reinstall diffuspec")
    sections: dict[str, object] = {
        "target": {"path": TARGET},
        "drafter": {"path": DRAFTER},
        "search": {"ngram": NGRAM},
    }
    if importlib.util.find_spec("kenlm") is None:
        logger.warning("kenlm is not installed: drafting without the n-gram proxy")
        del sections["search"]
    return parse_config(sections | overrides)
