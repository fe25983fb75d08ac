"""Matrices of AWQ, GPTQ and compressed-tensors, unpacked without any rounding.

A weight is `(number - zero) * scale`, where each output has a scale and a zero for each group of
inputs. The formats differ in where numbers lie in words of 32 bits, and in how zeros are written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diffuspec.models.kernels.products import Int8Matrix
from diffuspec.models.layers.matrices import AnyQuantized
from diffuspec.models.loading.packed_layer import PackedLayer
from diffuspec.models.loading.quantization import WORD

_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # places of successive outputs in a word


def awq_matrix(layer: PackedLayer) -> AnyQuantized:
    """Return the matrix of a layer of AWQ. Raises ModelLoadError."""
    scales = layer.read_scales("scales")  # [groups, outputs]
    num_words = -(-layer.num_outputs // WORD)
    words = layer.read_words("qweight", layer.num_inputs, num_words)
    zeros = _awq_numbers(layer.read_words("qzeros", len(scales), num_words))

    def unpack(start: int, end: int) -> Tensor:
        return _awq_numbers(words[:, start // WORD : -(-end // WORD)]).T[: end - start]

    return layer.matrix(4, scales.T, zeros.T[: layer.num_outputs].int(), unpack)


def gptq_matrix(layer: PackedLayer, zero_shift: int) -> AnyQuantized:
    """Return the matrix of a layer of GPTQ. Raises ModelLoadError."""
    scales = layer.read_scales("scales")  # [groups, outputs]
    layer.check_order("g_idx", len(scales))
    bits = _num_bits(layer.shape("qweight")[0], layer.num_inputs)
    words = layer.read_words("qweight", layer.num_inputs * bits // 32, layer.num_outputs)
    num_words = -(-layer.num_outputs * bits // 32)
    zeros = _numbers(layer.read_words("qzeros", len(scales), num_words), bits).flatten(1)
    zeros = zeros[:, : layer.num_outputs].int() + zero_shift

    def unpack(start: int, end: int) -> Tensor:
        numbers = _numbers(words[:, start:end], bits)  # [words, outputs, numbers of a word]
        return _with_sign(numbers.transpose(0, 1).flatten(1), bits)

    return layer.matrix(bits, scales.T, zeros.T - (128 if bits == 8 else 0), unpack)


def compressed_matrix(layer: PackedLayer) -> AnyQuantized:
    """Return the matrix of a layer of compressed-tensors that is packed. Raises ModelLoadError."""
    scales = layer.read_scales("weight_scale")  # [outputs or 1, groups]
    layer.check_order("weight_g_idx", scales.shape[1])
    bits = _num_bits(layer.shape("weight_packed")[-1], layer.num_inputs)
    words = layer.read_words("weight_packed", layer.num_outputs, layer.num_inputs * bits // 32)
    if "weight_shape" in layer:  # repeats the shape that the model gives
        layer.read("weight_shape", 2)
    zeros = _compressed_zeros(layer, scales, bits)
    middle = 0 if bits == 8 else 8  # numbers are this much higher than they are written

    def unpack(start: int, end: int) -> Tensor:
        return _with_sign(_numbers(words[start:end], bits).flatten(1), bits)

    return layer.matrix(bits, scales, middle if zeros is None else zeros + middle, unpack)


def int8_matrix(layer: PackedLayer, rounds_rows: bool) -> AnyQuantized | Int8Matrix:
    """Return the matrix of a layer of compressed-tensors in int8. Raises ModelLoadError."""
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
    """Return zeros with signs, [outputs or 1, groups], if the layer has any."""
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
    """Return the unsigned numbers in words of 32 bits, lowest first, [..., numbers of a word]."""
    parts = words.contiguous().view(torch.uint8).view(*words.shape, 4)
    return parts if bits == 8 else torch.stack((parts & 15, parts >> 4), -1).flatten(-2)


def _awq_numbers(words: Tensor) -> Tensor:
    return _numbers(words, 4)[..., _AWQ_PLACES].flatten(1)


def _with_sign(numbers: Tensor, bits: int) -> Tensor:
    """Return numbers of 8 bits less 128, as layouts have them; others as they are."""
    return (numbers ^ 128).view(torch.int8) if bits == 8 else numbers
