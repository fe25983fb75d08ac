"""Products of rows with a weight matrix on a CPU, packed in reading order.

A step has few rows, so most of its time goes into reading weights: packed weights arrive at the
speed of memory. A row's output is bitwise independent of the other rows. There are kernels for

- float32 with AVX2 (x86-64-v3), AVX-512 and VNNI, or NEON (aarch64), to the same bits, and in plain
  C++; weights are kept in 16 bits if that is exact, as for most checkpoints, which were saved in 16
  bits;
- bfloat16 on processors with AMX: 16 rows take little longer than one;
- bfloat16 with AVX-512's bfloat16 instructions, twice as fast as float32.

Elsewhere rows in 16 bits are widened, summed in float32 and rounded.

int8 halves the amount to read. Rows are then also rounded, to 8 bits relative to their largest
number: good enough for drafts, which change no token.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from diffuspec.models.kernels import huge_pages, operations

if operations.is_available:
    from diffuspec.models.kernels import _cpu

_PART = 512  # outputs packed at a time: whole blocks


def has_tiles() -> bool:
    """Return whether this processor has tiles, and the system lets this process use them."""
    return operations.is_available and _cpu.has_tiles()


def has_bfloat16_vectors() -> bool:
    """Return whether this processor also has AVX-512 instructions for bfloat16."""
    return operations.is_available and _cpu.has_bfloat16_vectors()


class Matrix(ctypes.Structure):
    """Addresses of a packed weight: see cpu/products.h."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("num_inputs", ctypes.c_int),
        ("num_outputs", ctypes.c_int),
        ("weight_type", ctypes.c_int),
        ("num_parts", ctypes.c_int),
        ("parts", ctypes.c_void_p),
    )


class Int8Matrix(NamedTuple):
    """A weight divided by the scales of its outputs. Rows are rounded to 8 bits as well."""

    numbers: Tensor  # int8, [outputs, inputs]
    scales: Tensor  # float32, [outputs]


class Product(Protocol):
    """inputs * weight^T + bias, where the weight is [outputs, inputs]."""

    num_outputs: int

    @property
    def weight(self) -> Tensor:
        """The weight in torch's layout, [outputs, inputs]. Slow: it is unpacked."""
        ...

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs, [..., outputs], of inputs [..., inputs]."""
        ...


class FusedProduct(ABC):
    """A `Product` that also computes what follows it in a layer, which saves launches."""

    @abstractmethod
    def __call__(self, inputs: Tensor, added: Tensor | None = None) -> Tensor:
        """Return the outputs, plus `added`; both the outputs and the sum are rounded."""

    @abstractmethod
    def gated(self, inputs: Tensor) -> Tensor:
        """Return silu(gates) * values of rows [T, inputs], [T, outputs / 2]; gates come first."""


class CpuProduct:
    """A `Product` computed by the compiled kernel, which reads what a `Matrix` points to."""

    def __init__(self, matrix: Matrix, dtype: torch.dtype) -> None:
        """dtype: of inputs and outputs."""
        self.matrix, self._type = matrix, dtype
        self.num_outputs, self._num_inputs = matrix.num_outputs, matrix.num_inputs
        self._address = ctypes.addressof(matrix)

    def __call__(self, inputs: Tensor) -> Tensor:
        assert inputs.dtype == self._type, f"a product in {self._type} of {inputs.dtype}"
        inputs = inputs.contiguous()
        outputs = inputs.new_empty(*inputs.shape[:-1], self.num_outputs)
        _cpu.multiply(
            operations.TYPES[self._type],
            torch.get_num_threads(),
            self._address,
            inputs.data_ptr(),
            outputs.data_ptr(),
            inputs.numel() // self._num_inputs,
        )
        return outputs


class MatrixProduct(CpuProduct):
    """A product whose weight is packed for the instructions in use."""

    def __init__(
        self,
        weight: Tensor | Int8Matrix,
        bias: Tensor | None,
        allow_int8: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        """dtype: of inputs and outputs; by default the weight's.

        With allow_int8, the product is computed in int8. A float32 product may have a 16-bit
        weight.
        """
        if allow_int8 and isinstance(weight, Tensor):
            dtype, weight = dtype or weight.dtype, _to_int8(weight)
        stored, scales = weight if isinstance(weight, Int8Matrix) else (weight, None)
        dtype = dtype or stored.dtype
        num_outputs, num_inputs = stored.shape
        self._layout = _Tiles if dtype == torch.bfloat16 and has_tiles() else _Vectors
        padding = -num_outputs % self._layout.block
        self._biases = padded_biases(bias, num_outputs + padding)
        self._scales: Tensor | None = None
        self._offsets: Tensor | None = None
        if scales is not None:
            self._scales = pad(scales, (0, padding))
            if self._layout is _Vectors:
                self._offsets = pad(-128 * stored.sum(dim=1, dtype=torch.int32), (0, padding))
        elif stored.dtype == torch.float32:
            stored = _in_16_bits(stored)
        self._weights = self._packed(stored, dtype)
        matrix = Matrix(
            self._weights.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
            self._biases.data_ptr(),
            None if self._offsets is None else self._offsets.data_ptr(),
            num_inputs,
            num_outputs,
            operations.TYPES.get(stored.dtype, 0),
        )
        super().__init__(matrix, dtype)

    def _packed(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a weight in the layout, packed in parts to avoid a second copy in memory."""
        takes_pairs = dtype == torch.bfloat16 and (has_tiles() or has_bfloat16_vectors())
        input_size = 1 if self._scales is not None else 2 if takes_pairs else 4
        stored = weight.dtype
        if weight.element_size() == input_size < 4 and weight.shape[1] * input_size % 4 == 0:
            weight, input_size = weight.contiguous().view(torch.int32), 4  # moves a group at once
        block, starts = self._layout.block, range(0, max(1, len(weight)), _PART)
        shape = self._layout.pack(weight[:1], input_size).shape
        size = (-(-len(weight) // block), *shape[1:])
        packed = huge_pages.empty(size, weight.dtype)
        for start in starts:
            part = weight[start : start + _PART]
            end = start // block + -(-len(part) // block)
            self._layout.write(packed[start // block : end], part, input_size)
        return packed.view(stored)

    @property
    def weight(self) -> Tensor:
        """The weight in torch's layout, [outputs, inputs]. Slow: it is unpacked."""
        return self.rows(torch.arange(self.num_outputs)).to(self._type)

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the weights of some outputs as stored, [outputs, inputs]."""
        rows = self._layout.unpack(self._weights, outputs)[:, : self._num_inputs]
        return rows if self._scales is None else rows * self._scales[outputs, None]


def padded_biases(bias: Tensor | None, size: int) -> Tensor:
    """Return `size` float32 numbers: the biases, and zeros."""
    biases = torch.zeros(size)
    if bias is not None:
        biases[: len(bias)] = bias
    return biases


def _padded(weight: Tensor, num_columns: int, num_rows: int) -> Tensor:
    """Return the weight with columns and rows of zeros at the end; itself if there are none."""
    return pad(weight, (0, num_columns, 0, num_rows)) if num_columns or num_rows else weight


def _in_16_bits(weight: Tensor) -> Tensor:
    """Return a float32 weight in 16 bits if that is exact, else unchanged."""
    for dtype in (torch.bfloat16, torch.float16):
        narrow = weight.to(dtype)
        if torch.equal(narrow.float(), weight):
            return narrow
    return weight


def _to_int8(weight: Tensor) -> Int8Matrix:
    scales = weight.abs().amax(dim=1).float().clamp_min(torch.finfo(torch.float32).tiny) / 127
    return Int8Matrix((weight / scales[:, None]).round_().to(torch.int8), scales)


class _Tiles:
    """[blocks, steps, 2, 16, 16, group].

    The layout for tiles. A tile has 16 lines, each with a group of four bytes of inputs for each of
    16 outputs. A step has the tiles of 32 outputs that are multiplied with the same inputs.
    """

    lanes = 16
    block = 2 * lanes  # outputs in a block
    line = 64  # bytes of inputs in a tile for each output

    @classmethod
    def pack(cls, weight: Tensor, input_size: int) -> Tensor:
        num_outputs, num_inputs = weight.shape
        width, group = cls.line // input_size, 4 // input_size
        padded = _padded(weight, -num_inputs % width, -num_outputs % cls.block)
        parts = padded.view(-1, 2, cls.lanes, padded.shape[1] // width, width // group, group)
        return parts.permute(0, 3, 1, 4, 2, 5)

    @classmethod
    def write(cls, blocks: Tensor, weight: Tensor, input_size: int) -> None:
        """Write a weight into uninitialised blocks of the layout."""
        blocks.copy_(cls.pack(weight, input_size))

    @classmethod
    def unpack(cls, tiles: Tensor, outputs: Tensor) -> Tensor:
        """Return the padded weights of some outputs."""
        halves = outputs // cls.lanes
        return tiles[halves // 2, :, halves % 2, :, outputs % cls.lanes].flatten(1)


class _Vectors:
    """[blocks, steps, 64, group]: a step has a group of four bytes of inputs for 64 outputs."""

    block = 64  # outputs in a block

    @classmethod
    def pack(cls, weight: Tensor, input_size: int) -> Tensor:
        num_outputs, num_inputs = weight.shape
        group = 4 // input_size
        padded = _padded(weight, -num_inputs % group, -num_outputs % cls.block)
        parts = padded.view(-1, cls.block, padded.shape[1] // group, group)
        return parts.transpose(1, 2)

    @classmethod
    def write(cls, blocks: Tensor, weight: Tensor, input_size: int) -> None:
        """Write a weight into uninitialised blocks of the layout."""
        if input_size < 4:
            blocks.copy_(cls.pack(weight, input_size))
            return
        padded = _padded(weight, 0, -len(weight) % cls.block)
        for block, rows in zip(blocks.squeeze(-1), torch.split(padded, cls.block), strict=True):
            block.copy_(rows.t())  # torch has a fast copy of matrices, but none of stacks of them

    @classmethod
    def unpack(cls, blocks: Tensor, outputs: Tensor) -> Tensor:
        """Return the padded weights of some outputs."""
        return blocks[outputs // cls.block, :, outputs % cls.block].flatten(1)
