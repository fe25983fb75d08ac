"""How many tokens the cache of a model has room for, before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from diffuspec.core.errors import ModelLoadError
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.models.loading.backend import Backend
from diffuspec.models.loading.cache_shape import cache_shape
from diffuspec.models.loading.checkpoint import (
    Checkpoint,
    inspect_checkpoint,
    inspect_config,
    memory_bytes,
)
from diffuspec.models.loading.transformers_model import transformers_config
from diffuspec.models.pages.store import describe_size

_SHARE = 0.9  # share of the device's memory that weights and cache may take


def describe_room(
    checkpoint: Checkpoint, here: Backend | None, device_memory: float | None
) -> dict[str, str]:
    """Return what a token takes in the cache, and what has room beside the weights.

    device_memory: GiB of a GPU, or of all GPUs of a target, with weights in bfloat16; None: of this
    machine, with what `here` says. Raises ModelLoadError.
    """
    dtype = torch.bfloat16 if here is None or device_memory is not None else here.dtype
    if device_memory is not None:
        num_bytes = int(device_memory * 2**30)
    else:
        is_on_gpu = torch.cuda.is_available() if here is None else here.device.type == "cuda"
        num_bytes = memory_bytes(torch.device("cuda" if is_on_gpu else "cpu"))
    shape = cache_shape(checkpoint.path, transformers_config(checkpoint))
    return {
        "cache": f"{shape.num_bytes(1, dtype) / 1024:.1f} KiB a token",
        "cache_memory 0.9": _room(
            num_bytes, checkpoint.weight_bytes(dtype), shape.num_bytes(PAGE_SIZE, dtype)
        ),
    }


def _room(memory_bytes: int, weight_bytes: int, page_bytes: int) -> str:
    """Return what the cache holds if it takes 90 % of a memory together with the weights."""
    num_bytes = int(_SHARE * memory_bytes) - weight_bytes
    if num_bytes < page_bytes:
        return f"none: the weights take {_gib(weight_bytes)} of {_gib(memory_bytes)}"
    size = describe_size(num_bytes // page_bytes)
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
