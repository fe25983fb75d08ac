"""diffuspec: lossless speculative decoding with a diffusion language model as drafter."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffuspec.core.config import EngineConfig, load_config, parse_config
from diffuspec.core.errors import DiffuspecError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import FinishReason

if TYPE_CHECKING:
    from diffuspec.core.types import RequestOutput
    from diffuspec.engine import Completion, Engine

__all__ = [
    "Completion",
    "DiffuspecError",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "RequestOutput",
    "SamplingParams",
    "SpeculationParams",
    "load_config",
    "parse_config",
]

# What needs torch is imported when it is asked for, so that `diffuspec --help` answers at once.
_LAZY = {
    "Completion": "diffuspec.engine",
    "Engine": "diffuspec.engine",
    "RequestOutput": "diffuspec.coordinator.sequence",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'diffuspec' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
