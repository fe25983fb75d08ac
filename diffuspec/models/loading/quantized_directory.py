"""The weights of a model directory with quantised matrices: AWQ, GPTQ, compressed-tensors.

Matrices are unpacked without any rounding. A weight is `(number - zero) * scale`, where each output
has a scale and a zero for each group of inputs. The formats differ in the order of numbers in
32-bit words, and in how zeros are stored.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.kernels.products import Int8Matrix
from diffuspec.models.layers.quantized import AnyQuantized, StoredMatrix
from diffuspec.models.loading.backend import Backend
from diffuspec.models.loading.checkpoint import Checkpoint, weight_files
from diffuspec.models.loading.packed_layer import PackedLayer
from diffuspec.models.loading.quantization import MARKS, WORD, Quantization
from diffuspec.models.loading.shared import SHARED_KEY
from diffuspec.models.loading.stored_model import check_can_stay_quantized, empty_model, fill
from diffuspec.models.loading.stored_tensors import StoredTensor, stored_tensors

_WEIGHT, _BIAS = "weight", "bias"
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # places of successive outputs in a word


def read_quantized_model(
    checkpoint: Checkpoint, config: Any, backend: Backend, num_ranks: int
) -> Any:
    """Return the causal LM of a directory. Raises ModelLoadError."""
    path, quantization = checkpoint.path, checkpoint.quantization
    dtype, device = backend.dtype, backend.device
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
    fill(model, _QuantizedDirectory(path, quantization, tensors, device), backend)
    return model


class _QuantizedDirectory:
    """Weights by their names in transformers' models; each is read once."""

    def __init__(
        self,
        path: Path,
        quantization: Quantization,
        tensors: list[StoredTensor],
        device: torch.device,
    ) -> None:
        """device: determines the layout of quantised matrices."""
        self._path, self._quantization, self._device = path, quantization, device
        self._left: dict[str, dict[str, StoredTensor]] = {}  # by layer, then by suffix of the name
        for tensor in tensors:
            layer, _, end = tensor.name.rpartition(".")
            self._left.setdefault(layer, {})[end] = tensor

    def __contains__(self, name: str) -> bool:
        layer, _, end = name.rpartition(".")
        found = self._left.get(layer, {})
        return end in found or (end == _WEIGHT and any(mark in found for mark in MARKS))

    def matrix(self, name: str, shape: tuple[int, int]) -> StoredMatrix:
        """Return a weight as stored. Raises ModelLoadError."""
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
        """Return an unquantised tensor in a type, in its own memory. Raises ModelLoadError."""
        return self._plain(name, shape).to(dtype, copy=True)

    def check_all_read(self) -> None:
        """Raise ModelLoadError if a tensor was not used."""
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
            return _awq_matrix(layer)
        if method == "gptq":
            return _gptq_matrix(layer, self._quantization.zero_shift)
        if "weight_packed" in layer:
            return _compressed_matrix(layer)
        return _int8_matrix(layer, self._quantization.rounds_rows)


def _awq_matrix(layer: PackedLayer) -> AnyQuantized:
    """Return the matrix of an AWQ layer. Raises ModelLoadError."""
    scales = layer.read_scales("scales")  # [groups, outputs]
    num_words = -(-layer.num_outputs // WORD)
    words = layer.read_words("qweight", layer.num_inputs, num_words)
    zeros = _awq_numbers(layer.read_words("qzeros", len(scales), num_words))

    def unpack(start: int, end: int) -> Tensor:
        return _awq_numbers(words[:, start // WORD : -(-end // WORD)]).T[: end - start]

    return layer.matrix(4, scales.T, zeros.T[: layer.num_outputs].int(), unpack)


def _gptq_matrix(layer: PackedLayer, zero_shift: int) -> AnyQuantized:
    """Return the matrix of a GPTQ layer. Raises ModelLoadError."""
    scales = layer.read_scales("scales")  # [groups, outputs]
    layer.check_order("g_idx", len(scales))
    bits = _num_bits(layer.shape("qweight")[0], layer.num_inputs)
    words = layer.read_words("qweight", layer.num_inputs * bits // 32, layer.num_outputs)
    num_words = -(-layer.num_outputs * bits // 32)
    zeros = _numbers(layer.read_words("qzeros", len(scales), num_words), bits).flatten(1)
    zeros = zeros[:, : layer.num_outputs].int() + zero_shift

    def unpack(start: int, end: int) -> Tensor:
        numbers = _numbers(words[:, start:end], bits)  # [words, outputs, numbers in a word]
        return _with_sign(numbers.transpose(0, 1).flatten(1), bits)

    return layer.matrix(bits, scales.T, zeros.T - (128 if bits == 8 else 0), unpack)


def _compressed_matrix(layer: PackedLayer) -> AnyQuantized:
    """Return the matrix of a packed compressed-tensors layer. Raises ModelLoadError."""
    scales = layer.read_scales("weight_scale")  # [outputs or 1, groups]
    layer.check_order("weight_g_idx", scales.shape[1])
    bits = _num_bits(layer.shape("weight_packed")[-1], layer.num_inputs)
    words = layer.read_words("weight_packed", layer.num_outputs, layer.num_inputs * bits // 32)
    if "weight_shape" in layer:  # repeats the shape given by the model
        layer.read("weight_shape", 2)
    zeros = _compressed_zeros(layer, scales, bits)
    middle = 0 if bits == 8 else 8  # offset of the unsigned numbers

    def unpack(start: int, end: int) -> Tensor:
        return _with_sign(_numbers(words[start:end], bits).flatten(1), bits)

    return layer.matrix(bits, scales, middle if zeros is None else zeros + middle, unpack)


def _int8_matrix(layer: PackedLayer, rounds_rows: bool) -> AnyQuantized | Int8Matrix:
    """Return the matrix of an int8 compressed-tensors layer. Raises ModelLoadError."""
    scales = layer.read_scales("weight_scale")
    numbers = layer.read("weight", layer.num_outputs, layer.num_inputs)
    if numbers.dtype != torch.int8:
        raise layer.error(f"has a weight of {numbers.dtype} beside its scales, expected int8")
    zeros = _compressed_zeros(layer, scales, 8)
    if not rounds_rows:
        return layer.matrix(8, scales, 0 if zeros is None else zeros, lambda a, b: numbers[a:b])
    if scales.shape[1] > 1 or (zeros is not None and bool(zeros.any())):
        raise layer.error(
            "has groups or zero points, which is not supported where inputs are rounded to 8 bits"
        )
    return Int8Matrix(numbers, scales.float().expand(layer.num_outputs, -1)[:, 0])


def _compressed_zeros(layer: PackedLayer, scales: Tensor, bits: int) -> Tensor | None:
    """Return signed zeros, [outputs or 1, groups], if the layer has any."""
    if "weight_zero_point" not in layer:
        return None
    shape = layer.shape("weight_zero_point")
    found = layer.read("weight_zero_point", *shape)
    if found.dtype == torch.int32:  # packed along the outputs
        rows = _numbers(found.T, bits).flatten(1)[:, : len(scales)]
        found = rows.T.int() - (1 << bits - 1)
    if found.numel() != scales.numel():
        raise layer.error(f"has weight_zero_point of the shape {list(shape)}")
    return found.reshape(scales.shape).int()


def _num_bits(num_words: int, num_inputs: int) -> int:
    return 8 if num_words * 4 == num_inputs else 4


def _numbers(words: Tensor, bits: int) -> Tensor:
    """Return the unsigned numbers in 32-bit words, lowest first, [..., numbers in a word]."""
    parts = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    return parts if bits == 8 else torch.stack((parts & 15, parts >> 4), -1).flatten(-2)


def _awq_numbers(words: Tensor) -> Tensor:
    return _numbers(words, 4)[..., _AWQ_PLACES].flatten(1)


def _with_sign(numbers: Tensor, bits: int) -> Tensor:
    """Return 8-bit numbers minus 128, as our layouts store them; other numbers unchanged."""
    return (numbers ^ 128).view(torch.int8) if bits == 8 else numbers
