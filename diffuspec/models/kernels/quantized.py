"""Weights that stay quantised in memory, and their products on a CPU.

A weight is `number * scale + offset`, computed in float32: numbers are integers of 4 or 8 bits, and
each output has a scale and an offset for each group of its inputs. Scales are 16-bit numbers (or
float32); or several groups share one, multiplied by an integer of each group. Offsets are stored in
the same ways, or are `-zero * scale`. Formats are converted without any rounding. A product in
float32 has the same bits as one with the same weights in float32, and a row's result is independent
of the other rows.

In bfloat16, where the processor multiplies it, numbers and inputs are multiplied without rounding,
and scales and offsets multiply float32 sums over a group. Elsewhere inputs in 16 bits are widened.

With activations quantised as well (dynamic quantisation, as in llama.cpp and OpenVINO), each run of
32 inputs of a row is rounded to 8 bits relative to its largest number, and integers are multiplied.
That is faster, especially for several rows. A row's bits are still independent of the other rows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffuspec.models.kernels import huge_pages, operations
from diffuspec.models.kernels.products import CpuProduct, Matrix, padded_biases

MAX_GROUP = 256  # inputs in a group, at most
_BLOCK = 64  # outputs computed together
_SLICE = 1 << 18  # weights unpacked at a time: malloc would keep larger buffers


@dataclass(frozen=True, slots=True)
class Layout:
    """How a format stores its weights."""

    bits: int  # bits of a number: 4 unsigned, or 8 signed
    group: int  # inputs in a group
    ratio: int = 1  # groups that share a scale, which their codes multiply
    zero: int = 0  # the number that stands for 0, without offsets or zeros of groups
    scale_type: torch.dtype = torch.float16


class Groups(NamedTuple):
    """The weights of some outputs, [outputs, inputs], and their groups, [outputs, groups]."""

    numbers: Tensor  # uint8 or int8
    scales: Tensor  # [outputs, groups / ratio]
    codes: Tensor | None = None  # int8
    offsets: Tensor | None = None  # [outputs, groups / ratio]
    offset_codes: Tensor | None = None
    zeros: Tensor | None = None  # int8: the number that stands for 0 in each group


class _Part(ctypes.Structure):
    """Addresses of a matrix: see cpu/quantized_products.h."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("supers", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("super_offsets", ctypes.c_void_p),
        ("offset_codes", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("bits", ctypes.c_int),
        ("zero", ctypes.c_int),
        ("group", ctypes.c_int),
        ("ratio", ctypes.c_int),
        ("scale_type", ctypes.c_int),
        ("first_output", ctypes.c_int),
        ("num_outputs", ctypes.c_int),
        ("quantizes_rows", ctypes.c_int),
    )


class QuantizedMatrix:
    """A matrix, [outputs, inputs], in blocks of 64 outputs."""

    def __init__(self, layout: Layout, shape: tuple[int, ...], slices: Iterable[Groups]) -> None:
        """slices: successive outputs, in multiples of 64 except for the last."""
        self.layout, (self.num_outputs, self.num_inputs) = layout, shape
        num_blocks = -(-self.num_outputs // _BLOCK)
        packed = (self._packed(one) for one in slices)
        self._fields = joined_blocks(
            packed, lambda like: huge_pages.empty((num_blocks, *like.shape[1:]), like.dtype)
        )

    def _packed(self, groups: Groups) -> list[Tensor | None]:
        """Return the fields that kernels read for some outputs, in the order of `Groups`."""
        fields = _words(groups.numbers, self.layout.bits), *groups[1:]
        return [None if field is None else _in_blocks(field) for field in fields]

    def structure(self, first_output: int) -> _Part:
        """Return the matrix's addresses, as a part of a larger one with other outputs before it."""
        layout = self.layout
        return _Part(
            *(None if field is None else field.data_ptr() for field in self._fields),
            layout.bits,
            layout.zero,
            layout.group,
            layout.ratio,
            operations.TYPES[layout.scale_type],
            first_output,
            self.num_outputs,
        )

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the weights of some outputs in float32, [outputs, inputs]."""
        blocks, places = outputs // _BLOCK, outputs % _BLOCK
        picked = [None if field is None else field[blocks, :, places] for field in self._fields]
        numbers, supers, codes, super_offsets, offset_codes, zeros = picked
        assert numbers is not None and supers is not None
        layout = self.layout
        numbers = numbers.contiguous().view(torch.int8 if layout.bits == 8 else torch.uint8)
        if layout.bits == 4:
            numbers = torch.stack((numbers & 15, numbers >> 4), -1).flatten(1)
        parts = numbers.view(len(outputs), -1, layout.group).float()
        scales = _of_groups(supers, codes, layout.ratio)[:, :, None]
        if super_offsets is None:  # only the product rounds, whatever the type of the scales
            moved = parts - (layout.zero if zeros is None else zeros[:, :, None])
            return (moved * scales).flatten(1)
        offsets = _of_groups(super_offsets, offset_codes, layout.ratio)
        return torch.addcmul(offsets[:, :, None], parts, scales).flatten(1)


class QuantizedProduct(CpuProduct):
    """A product whose weight is one or more matrices, one after another."""

    def __init__(
        self,
        matrices: Sequence[QuantizedMatrix],
        bias: Tensor | None,
        dtype: torch.dtype,
        quantize_activations: bool = False,
    ) -> None:
        """quantize_activations: round inputs to 8 bits: see cpu/dynamic_products.h."""
        self._matrices = list(matrices)
        num_outputs = sum(matrix.num_outputs for matrix in matrices)
        self._biases = padded_biases(bias, num_outputs + _BLOCK)
        parts, first = [], 0
        for matrix in matrices:
            part = matrix.structure(first)
            part.quantizes_rows = quantize_activations
            parts.append(part)
            first += matrix.num_outputs
        self._parts = (_Part * len(parts))(*parts)
        whole = Matrix(
            biases=self._biases.data_ptr(),
            num_inputs=matrices[0].num_inputs,
            num_outputs=num_outputs,
            num_parts=len(parts),
            parts=ctypes.addressof(self._parts),
        )
        super().__init__(whole, dtype)

    @property
    def weight(self) -> Tensor:
        """The weight in torch's layout, [outputs, inputs]. Slow: it is unpacked."""
        rows = [matrix.rows(torch.arange(matrix.num_outputs)) for matrix in self._matrices]
        return torch.cat(rows).to(self._type)


def joined_blocks(
    slices: Iterable[Sequence[Tensor | None]], make_whole: Callable[[Tensor], Tensor]
) -> list[Tensor | None]:
    """Return fields, [blocks, ...] each, assembled from slices of their blocks.

    Slices are created and copied one by one, so that no field is in memory twice. make_whole
    returns a tensor for all blocks, given a field of the first slice.
    """
    wholes: list[Tensor | None] = []
    end = 0
    for fields in slices:
        if not wholes:
            wholes = [None if field is None else make_whole(field) for field in fields]
        first = end
        for whole, field in zip(wholes, fields, strict=True):
            if whole is not None and field is not None:
                end = first + len(field)
                whole[first:end] = field
    return wholes


def slice_size(num_inputs: int) -> int:
    """Return the preferred number of outputs in a slice of a matrix."""
    return max(1, _SLICE // num_inputs // _BLOCK) * _BLOCK


def can_multiply(dtype: torch.dtype) -> bool:
    """Return whether products of quantised weights were compiled for inputs of a type."""
    return operations.is_available and dtype in operations.TYPES


def _of_groups(supers: Tensor, codes: Tensor | None, ratio: int) -> Tensor:
    """Return the scales or offsets of groups, [outputs, groups]."""
    wide = supers.float().repeat_interleave(ratio, dim=1)
    return wide if codes is None else wide * codes


def _in_blocks(field: Tensor) -> Tensor:
    """Return [outputs, N] as [blocks, N, 64], padded with 0."""
    padded = pad(field, (0, 0, 0, -len(field) % _BLOCK))
    return padded.view(-1, _BLOCK, field.shape[1]).transpose(1, 2)


def _words(numbers: Tensor, bits: int) -> Tensor:
    """Return [outputs, inputs] numbers in 32-bit words, the first inputs in the lowest bits."""
    numbers = numbers.contiguous()
    if bits == 4:
        pairs = numbers.view(torch.int16)
        numbers = (pairs | pairs >> 4).to(torch.uint8)
    return numbers.view(torch.int32)
