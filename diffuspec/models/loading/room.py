"""How many tokens the cache of a model has room for, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from transformers import AutoModelForCausalLM

from diffuspec.core.errors import ModelLoadError
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.models.loading.cache_shape import cache_shape
from diffuspec.models.loading.checkpoint import Checkpoint, inspect_checkpoint, inspect_config
from diffuspec.models.loading.transformers_model import transformers_config
from diffuspec.models.pages.store import describe_size

_SHARE = 0.9  # of the device's memory, for weights and cache


class ModelSize(NamedTuple):
    """The memory that a model takes on a device."""

    weight_bytes: int
    bytes_per_token: int  # keys and values of all layers

    @classmethod
    def of(cls, checkpoint: Checkpoint, dtype: torch.dtype) -> Self:
        """Return the size of a model directory, or of its config.json. Raises ModelLoadError."""
        config = transformers_config(checkpoint)
        shape = cache_shape(checkpoint.path, config)
        return cls(checkpoint.weight_bytes(dtype), shape.num_bytes(1, dtype))

    def describe_room(self, memory_bytes: int) -> str:
        """Return what the cache holds if it takes 90 % of a memory together with the weights."""
        num_bytes = int(_SHARE * memory_bytes) - self.weight_bytes
        if num_bytes < PAGE_SIZE * self.bytes_per_token:
            return f"none: the weights take {_gib(self.weight_bytes)} of {_gib(memory_bytes)}"
        size = describe_size(num_bytes // (PAGE_SIZE * self.bytes_per_token))
        return f"{size}, in {_gib(num_bytes)}: 90 % of {_gib(memory_bytes)}, less the weights"


def inspect_path(path: Path) -> Checkpoint:
    """Return a model directory, a GGUF file, or a config.json alone, whose weights are counted."""
    if path.name != "config.json":
        return inspect_checkpoint(path)
    checkpoint = inspect_config(path.parent)
    try:
        with torch.device("meta"):
            family: Any = AutoModelForCausalLM
            model = family.from_config(transformers_config(checkpoint))
    except ModelLoadError:
        raise
    except Exception as error:  # transformers may raise anything
        raise ModelLoadError(f"{path}: its weights cannot be counted: {error}") from error
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    return Checkpoint(path.parent, checkpoint.config, num_weights)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
