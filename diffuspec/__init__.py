"""diffuspec: lossless speculative decoding with a diffusion language model as drafter."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffuspec.config import EngineConfig, load_config, parse_config
from diffuspec.errors import DiffuspecError
from diffuspec.types import FinishReason, SamplingParams, SpeculationParams

if TYPE_CHECKING:
    from diffuspec.engine import Completion, Engine
    from diffuspec.sequence import Increment

__all__ = [
    "Completion",
    "DiffuspecError",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "Increment",
    "SamplingParams",
    "SpeculationParams",
    "load_config",
    "parse_config",
]

# What needs torch is imported when it is asked for, so that `diffuspec --help` answers at once.
_LAZY = {
    "Completion": "diffuspec.engine",
    "Engine": "diffuspec.engine",
    "Increment": "diffuspec.sequence",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'diffuspec' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
