"""The embedded pair: small models of the real architectures, for two CPU cores.

A target and a diffusion drafter of a few million weights each, and an n-gram model over the same
tokens, trained by this package on a corpus that it generates.
"""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import validate

__all__ = [
    "DRAFTER",
    "HEADS",
    "NGRAM",
    "QUESTIONS",
    "TARGET",
    "WEIGHTS",
    "other_drafters",
    "tiny_config",
]

logger = logging.getLogger(__name__)

WEIGHTS = Path(__file__).parent / "weights"
TARGET = WEIGHTS / "target"
DRAFTER = WEIGHTS / "drafter"
NGRAM = WEIGHTS / "ngram.bin"
QUESTIONS = WEIGHTS / "questions.jsonl"
HEADS = {  # heads by kind of drafter
    "medusa": WEIGHTS / "medusa",
    "hydra": WEIGHTS / "hydra",
    "eagle": WEIGHTS / "eagle",
    "eagle2": WEIGHTS / "eagle",
    "dflash": WEIGHTS / "dflash",
}


def tiny_config(**overrides: object) -> EngineConfig:
    """Return the configuration of the embedded pair, with sections replaced by `overrides`.

    Without the compiled scorer there is no n-gram model. Raises ConfigError if weights are missing.
    """
    if not (TARGET / "model.safetensors").exists():
        raise ConfigError(f"the embedded weights are missing from {WEIGHTS}; reinstall diffuspec")
    sections: dict[str, object] = {
        "target": {"path": TARGET},
        "drafter": {"path": DRAFTER},
        "search": {"ngram": NGRAM},
    }
    if importlib.util.find_spec("diffuspec.models.ngram._trie") is None:
        logger.warning(
            "the n-gram scorer was not compiled on installation: drafting without the n-gram model."
            " Install g++ and Python's headers (apt install g++ python3-dev), then install"
            " diffuspec again"
        )
        del sections["search"]
    return validate(EngineConfig, sections | overrides)


def other_drafters() -> dict[str, dict[str, object]]:
    """Return the sections of drafters besides the configuration's own, by kind."""
    paths = {"sps": DRAFTER, **HEADS}  # without masks the diffusion LM is a causal LM
    return {kind: {"kind": kind, "path": path} for kind, path in paths.items()}
