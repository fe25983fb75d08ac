"""diffuspec: lossless speculative decoding with a diffusion language model as drafter."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diffuspec.core.config import EngineConfig
    from diffuspec.core.errors import DiffuspecError
    from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput
    from diffuspec.core.types import FinishReason, RequestOutput
    from diffuspec.engine.completion import Completion
    from diffuspec.pairs import load_config, parse_config
    from diffuspec.pairs.engine import Engine

__all__ = [
    "Completion",
    "DiffuspecError",
    "Engine",
    "EngineConfig",
    "FinishReason",
    "RequestOutput",
    "SamplingParams",
    "SpeculationParams",
    "StructuredOutput",
    "load_config",
    "parse_config",
]

# OpenMP reads this when torch is imported. By default a thread that waits for the others spins for
# milliseconds, and on a busy machine keeps the processor from the one that it waits for.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Names are imported on first use: `diffuspec --help` needs none of them, nor torch.
_MODULES = {
    "Completion": "engine.completion",
    "DiffuspecError": "core.errors",
    "Engine": "pairs.engine",
    "EngineConfig": "core.config",
    "FinishReason": "core.types",
    "RequestOutput": "core.types",
    "SamplingParams": "core.params",
    "SpeculationParams": "core.params",
    "StructuredOutput": "core.params",
    "load_config": "pairs",
    "parse_config": "pairs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'diffuspec' has no attribute {name!r}")
    value = getattr(import_module(f"diffuspec.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
