"""The weights of a model directory whose matrices are quantised: AWQ, GPTQ, compressed-tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.layers.matrices import StoredMatrix
from diffuspec.models.loading.checkpoint import Checkpoint, weight_files
from diffuspec.models.loading.packed_formats import (
    awq_matrix,
    compressed_matrix,
    gptq_matrix,
    int8_matrix,
)
from diffuspec.models.loading.packed_layer import PackedLayer
from diffuspec.models.loading.quantization import MARKS, Quantization
from diffuspec.models.loading.shared import SHARED_KEY
from diffuspec.models.loading.stored_model import check_can_stay_quantized, empty_model, fill
from diffuspec.models.loading.stored_tensors import StoredTensor, stored_tensors

_WEIGHT, _BIAS = "weight", "bias"


def read_quantized_model(
    checkpoint: Checkpoint,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    num_ranks: int,
) -> Any:
    """Return the causal LM of a directory. Raises ModelLoadError."""
    path, quantization = checkpoint.path, checkpoint.quantization
    assert quantization is not None
    what = f"a model quantised by {quantization.method}"
    instead = "use the model in bfloat16 that it was made from"
    check_can_stay_quantized(path, what, dtype, device, num_ranks, instead)
    if SHARED_KEY in checkpoint.config:
        raise ModelLoadError(
            f"{path}: {what} must have its own embeddings, config.json has {SHARED_KEY}"
        )
    model = empty_model(path, config, dtype)
    tensors = [tensor for file in weight_files(path) for tensor in stored_tensors(file)]
    fill(model, QuantizedDirectory(path, quantization, tensors, device), dtype, device)
    return model


class QuantizedDirectory:
    """Weights by the names that transformers' models give them; each is read once."""

    def __init__(
        self,
        path: Path,
        quantization: Quantization,
        tensors: list[StoredTensor],
        device: torch.device,
    ) -> None:
        """Quantised matrices are laid out for a device."""
        self._path, self._quantization, self._device = path, quantization, device
        self._left: dict[str, dict[str, StoredTensor]] = {}  # layer: end of the name: tensor
        for tensor in tensors:
            layer, _, end = tensor.name.rpartition(".")
            self._left.setdefault(layer, {})[end] = tensor

    def __contains__(self, name: str) -> bool:
        layer, _, end = name.rpartition(".")
        found = self._left.get(layer, {})
        return end in found or (end == _WEIGHT and any(mark in found for mark in MARKS))

    def matrix(self, name: str, shape: tuple[int, int]) -> StoredMatrix:
        """Return a weight as it is stored. Raises ModelLoadError."""
        layer = name.rpartition(".")[0]
        tensors = self._left.get(layer, {})
        if not any(mark in tensors for mark in MARKS):
            return self._plain(name, shape)
        rest = {_BIAS: tensors[_BIAS]} if _BIAS in tensors else {}
        own = {end: tensor for end, tensor in tensors.items() if end != _BIAS}
        self._left[layer] = rest
        packed = PackedLayer(layer, shape, own, self._path, self._device)
        matrix = self._unpacked(packed)
        packed.check_all_read()
        return matrix

    def vector(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a plain tensor in a type, in memory of its own. Raises ModelLoadError."""
        return self._plain(name, shape).to(dtype, copy=True)

    def check_all_read(self) -> None:
        """Raises ModelLoadError if a tensor was not asked for."""
        left = [tensor.name for layer in self._left.values() for tensor in layer.values()]
        if left:
            raise ModelLoadError(
                f"{self._path}: {len(left)} unexpected weights: {', '.join(sorted(left)[:3])}"
            )

    def _plain(self, name: str, shape: tuple[int, ...]) -> Tensor:
        layer, _, end = name.rpartition(".")
        tensor = self._left.get(layer, {}).pop(end, None)
        if tensor is None:
            raise ModelLoadError(f"{self._path} has no {name}")
        found = tensor.read()
        if tuple(found.shape) != shape or not found.is_floating_point():
            raise ModelLoadError(
                f"{self._path}: {name} has the shape {list(found.shape)} in {found.dtype}, "
                f"expected numbers of the shape {list(shape)}"
            )
        return found

    def _unpacked(self, layer: PackedLayer) -> StoredMatrix:
        method = self._quantization.method
        if method == "awq":
            return awq_matrix(layer)
        if method == "gptq":
            return gptq_matrix(layer, self._quantization.zero_shift)
        if "weight_packed" in layer:
            return compressed_matrix(layer)
        return int8_matrix(layer, self._quantization.rounds_rows)
