"""A model of a GGUF file, with its weights quantised as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading.gguf_tensors import ROPE_FACTORS, GgufTensors
from diffuspec.models.loading.stored_model import check_can_stay_quantized, empty_model, fill

_FAMILIES = ("llama", "qwen2", "qwen3")
_INSTEAD = "`diffuspec model import` makes a model directory of it, which can"


def read_gguf_model(
    path: Path, config: Any, dtype: torch.dtype, device: torch.device, num_ranks: int
) -> Any:
    """Return the causal LM of a file. Raises ModelLoadError."""
    if config.model_type not in _FAMILIES:
        raise ModelLoadError(
            f"{path}: GGUF files of {config.model_type} cannot be run as they are, those of "
            f"{', '.join(_FAMILIES)} can: {_INSTEAD}"
        )
    check_can_stay_quantized(path, "a GGUF file", dtype, device, num_ranks, _INSTEAD)
    model = empty_model(path, config, dtype)
    is_llama = config.model_type == "llama"
    heads = config.num_attention_heads, config.num_key_value_heads
    tensors = GgufTensors(path, *heads, is_llama, device)
    if ROPE_FACTORS in tensors:
        frequencies = model.model.rotary_emb.inv_freq
        factors = tensors.vector(ROPE_FACTORS, tuple(frequencies.shape), torch.float32)
        frequencies /= factors
    fill(model, tensors, dtype, device)
    return model
