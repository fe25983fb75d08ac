"""diffuspec: lossless speculative decoding with a diffusion language model as drafter."""

from diffuspec.config import EngineConfig, load_config, parse_config
from diffuspec.engine import Completion, Engine
from diffuspec.errors import DiffuspecError
from diffuspec.sequence import Increment
from diffuspec.types import FinishReason, SamplingParams, SpeculationParams

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
