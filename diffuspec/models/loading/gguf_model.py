"""A model of a GGUF file, with its weights quantised as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.interface import ATTENTION_NAME
from diffuspec.models.loading.fast_layers import SIBLINGS, AnyLinear, packed, siblings_of
from diffuspec.models.loading.gguf_tensors import ROPE_FACTORS, GgufTensors
from diffuspec.models.loading.quantized_layers import QuantizedLinear, RowsEmbedding
from diffuspec.models.rows.quantized import QuantizedMatrix, can_multiply

_FAMILIES = ("llama", "qwen2", "qwen3")


def read_gguf_model(
    path: Path, config: Any, dtype: torch.dtype, device: torch.device, num_ranks: int
) -> Any:
    """Return the causal LM of a file. Raises ModelLoadError."""
    _check_can_run(path, config, dtype, device, num_ranks)
    family: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with torch.device("meta"):
        model = family._from_config(config, dtype=dtype, attn_implementation=ATTENTION_NAME)
    kv_heads = config.num_key_value_heads
    is_llama = config.model_type == "llama"
    tensors = GgufTensors(path, config.num_attention_heads, kv_heads, is_llama)
    rotary = type(model.model.rotary_emb)(config=config)
    if ROPE_FACTORS in tensors:
        rotary.inv_freq /= tensors.plain(ROPE_FACTORS, torch.float32)
    model.model.rotary_emb = rotary
    _Reading(tensors, dtype).fill(model, config.tie_word_embeddings)
    tensors.check_all_read()
    return model.eval().requires_grad_(False)


def _check_can_run(
    path: Path, config: Any, dtype: torch.dtype, device: torch.device, num_ranks: int
) -> None:
    instead = "`diffuspec model import` makes a model directory of it, which can"
    if config.model_type not in _FAMILIES:
        raise ModelLoadError(
            f"{path}: GGUF files of {config.model_type} cannot be run as they are, those of "
            f"{', '.join(_FAMILIES)} can: {instead}"
        )
    if device.type != "cpu":
        raise ModelLoadError(f"{path}: GGUF files cannot be run as they are on a GPU: {instead}")
    if num_ranks > 1:
        raise ModelLoadError(f"{path}: GGUF files cannot be spread over ranks: {instead}")
    if not can_multiply(dtype):
        raise ModelLoadError(
            f"{path}: GGUF files are run as they are by diffuspec's kernels, which were not "
            f"compiled: reinstall it where there is a C++ compiler, or {instead}"
        )


class _Reading:
    """Fills the modules of a model without weights."""

    def __init__(self, tensors: GgufTensors, dtype: torch.dtype) -> None:
        self._tensors, self._dtype = tensors, dtype

    def fill(self, model: Any, is_tied: bool) -> None:
        name = "model.embed_tokens.weight"
        self._tensors.check_shape(name, tuple(model.model.embed_tokens.weight.shape))
        embeddings = self._stored(name)
        if is_tied:
            model.lm_head = self._linear([embeddings], None)
        for prefix, parent in list(model.named_modules()):
            self._fill_siblings(prefix, parent)
            for own, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, own, self._read_linear([f"{prefix}.{own}".strip(".")], [child]))
            for own, parameter in list(parent.named_parameters(recurse=False)):
                if not isinstance(parent, nn.Linear | nn.Embedding):
                    found = self._vector(f"{prefix}.{own}", tuple(parameter.shape))
                    setattr(parent, own, nn.Parameter(found, requires_grad=False))
        model.model.embed_tokens = RowsEmbedding(embeddings, self._dtype)

    def _fill_siblings(self, prefix: str, parent: nn.Module) -> None:
        """Read layers of one input as one, where they are stored alike."""
        for owns in SIBLINGS:
            if not all(hasattr(parent, own) for own in owns):
                continue
            layers: list[Any] = [getattr(parent, own) for own in owns]
            names = [f"{prefix}.{own}" for own in owns]
            if len({self._tensors.is_plain(f"{name}.weight") for name in names}) == 1:
                layer = self._read_linear(names, layers)
                found = siblings_of(layer, [one.out_features for one in layers])
                for own, sibling in zip(owns, found, strict=True):
                    setattr(parent, own, sibling)

    def _read_linear(self, names: Sequence[str], layers: Sequence[nn.Linear]) -> AnyLinear:
        """Return layers of one input as one layer."""
        stored, biases = [], []
        for name, layer in zip(names, layers, strict=True):
            self._tensors.check_shape(f"{name}.weight", tuple(layer.weight.shape))
            stored.append(self._stored(f"{name}.weight"))
            if layer.bias is not None:
                biases.append(self._vector(f"{name}.bias", tuple(layer.bias.shape)))
        return self._linear(stored, torch.cat(biases) if biases else None)

    def _linear(self, stored: Sequence[QuantizedMatrix | Tensor], bias: Tensor | None) -> AnyLinear:
        matrices = [one for one in stored if isinstance(one, QuantizedMatrix)]
        if matrices:
            return QuantizedLinear(matrices, bias, self._dtype)
        weights = [one.to(self._dtype) for one in stored if isinstance(one, Tensor)]
        return packed(torch.cat(weights), bias, is_exact=True, may_round=False)

    def _stored(self, name: str) -> QuantizedMatrix | Tensor:
        tensors = self._tensors
        return tensors.plain(name) if tensors.is_plain(name) else tensors.quantized(name)

    def _vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._tensors.check_shape(name, shape)
        return self._tensors.plain(name, self._dtype)
