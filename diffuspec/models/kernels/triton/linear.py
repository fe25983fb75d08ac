"""Products of rows with a weight in 16 or 32 bits, on a GPU.

A row's outputs are bitwise independent of the other rows. Steps are bound by reading the weights,
which these kernels do as fast as cuBLAS; for prompts cuBLAS is used in those numbers of rows in
which a trial finds the bits of our own kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from diffuspec.models.kernels.products import FusedProduct
from diffuspec.models.kernels.triton import linear_kernels, operations
from diffuspec.models.kernels.triton.launches import shared_bytes

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # an older Triton: weights are loaded by pointers
    TensorDescriptor = None

_TILES = (16, 32, 64)  # rows of a tile in steps
_LONG_TILE = 128  # rows of a tile in prompts
_CUBLAS_ROWS = (2048, 512)
_MAX_STAGES = 5
_OTHER_BYTES = 8 * 1024  # shared memory that barriers take
_DESCRIPTOR_BYTES = 16  # alignment of rows that a descriptor needs
_WITH_DESCRIPTORS = 9  # capability: GPUs that copy tiles by themselves
_MAX_TRIED = 1 << 27  # outputs in a trial: heads, which compute few rows, are not tried
_TRIED_OUTPUTS = 256  # different ones in a trial


class _Tile(NamedTuple):
    """What a program computes."""

    rows: int
    outputs: int
    unit: int  # inputs multiplied at a time
    num_warps: int

    def num_stages(self, itemsize: int, has_gates: bool, device: torch.device) -> int:
        """Number of units to have in flight."""
        num_read = self.rows + (2 if has_gates else 1) * self.outputs
        most = (shared_bytes(device) - _OTHER_BYTES) // (num_read * self.unit * itemsize)
        return max(1, min(_MAX_STAGES, most))


def _tile_for(num_rows: int, dtype: torch.dtype, has_long_tiles: bool) -> _Tile:
    if dtype == torch.float32:  # larger tiles need more registers than there are
        return _Tile(_TILES[0], 32, 32, 4)
    if num_rows > _TILES[-1] and has_long_tiles:
        return _Tile(_LONG_TILE, 128, 64, 8)
    rows = next((tile for tile in _TILES if tile >= num_rows), _TILES[-1])
    return _Tile(rows, 64, 128, 4)


class _Ways(NamedTuple):
    """The ways to compute products that have the bits of a single row's."""

    has_gates: bool  # whether gated values may be computed by the kernel of the product
    has_long_tiles: bool
    cublas_rows: tuple[int, ...]  # numbers of rows in which cuBLAS agrees, descending

    def pieces(self, num_rows: int) -> Iterator[tuple[int, bool]]:
        """Yield numbers of rows that add up to num_rows, and whether cuBLAS multiplies them."""
        while num_rows > 0:
            whole = next((size for size in self.cublas_rows if size <= num_rows), None)
            yield whole or num_rows, whole is not None
            num_rows -= whole or num_rows


class LinearProduct(FusedProduct):
    """A `Product` with a weight, [outputs, inputs]; outputs have the type `dtype`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.weight, self._bias, self._type = weight.contiguous(), bias, dtype
        self.num_outputs, self._num_inputs = weight.shape
        # No trial can run while steps are being captured.
        self._ways = _try_ways(tuple(weight.shape), weight.dtype, dtype, weight.device)

    def __call__(self, inputs: Tensor, added: Tensor | None = None) -> Tensor:
        rows = inputs.reshape(-1, self._num_inputs).contiguous()
        outputs = torch.empty(len(rows), self.num_outputs, dtype=self._type, device=rows.device)
        first = 0
        for size, is_by_cublas in self._ways.pieces(len(rows)):
            piece, to = rows[first : first + size], outputs[first : first + size]
            more = None if added is None else added[first : first + size]
            if is_by_cublas:
                _multiply_by_cublas(piece, self.weight, to)
                for summand in (self._bias, more):
                    if summand is not None:
                        to.add_(summand)
            else:
                tile = _tile_for(size, rows.dtype, self._ways.has_long_tiles)
                multiply(piece, self.weight, to, tile, self._bias, more)
            first += size
        return outputs.view(*inputs.shape[:-1], self.num_outputs)

    def gated(self, inputs: Tensor) -> Tensor:
        if len(inputs) > _TILES[-1] or not self._ways.has_gates or self._bias is not None:
            return operations.gate(self(inputs))
        outputs = inputs.new_empty(len(inputs), self.num_outputs // 2)
        tile = _tile_for(len(inputs), inputs.dtype, False)
        multiply(inputs.contiguous(), self.weight, outputs, tile, has_gates=True)
        return outputs


def multiply(
    rows: Tensor,
    weight: Tensor,
    outputs: Tensor,
    tile: _Tile,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    has_gates: bool = False,
) -> None:
    """Write the products of rows [T, inputs] with a weight, plus bias and `added`, [T, outputs].

    has_gates: write silu(gates) * values, [T, outputs / 2], where the weight has all gates first.
    """
    num_outputs, num_inputs = outputs.shape[1], weight.shape[1]
    has_descriptor = _takes_descriptors(weight)
    operand = weight
    if has_descriptor:
        operand = TensorDescriptor.from_tensor(weight, [tile.outputs, tile.unit])
    grid = triton.cdiv(len(rows), tile.rows) * triton.cdiv(num_outputs, tile.outputs)
    linear_kernels.multiply[(grid,)](
        rows,
        operand,
        outputs if bias is None else bias,
        outputs if added is None else added,
        outputs,
        len(rows),
        num_inputs,
        num_outputs,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        UNIT=tile.unit,
        HAS_DESCRIPTOR=has_descriptor,
        IS_WHOLE=num_inputs % tile.unit == 0,
        HAS_BIAS=bias is not None,
        ADDS=added is not None,
        GATES=has_gates,
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages(rows.itemsize, has_gates, rows.device),
    )


def _takes_descriptors(weight: Tensor) -> bool:
    if TensorDescriptor is None or not weight.is_cuda or weight.dtype == torch.float32:
        return False
    is_aligned = weight.stride(0) * weight.itemsize % _DESCRIPTOR_BYTES == 0
    is_aligned &= weight.data_ptr() % _DESCRIPTOR_BYTES == 0
    return is_aligned and torch.cuda.get_device_capability(weight.device)[0] >= _WITH_DESCRIPTORS


def _multiply_by_cublas(rows: Tensor, weight: Tensor, outputs: Tensor) -> None:
    torch.mm(rows, weight.t(), out=outputs)


@functools.cache
@torch.inference_mode()
def _try_ways(
    shape: tuple[int, int], dtype: torch.dtype, out_dtype: torch.dtype, device: torch.device
) -> _Ways:
    """Find the ways in which products have the bits of a single row's."""
    if dtype != out_dtype:
        return _Ways(False, False, ())
    has_gates = shape[0] % 2 == 0 and _has_same_gates(shape[1], dtype, device)
    if dtype == torch.float32:
        return _Ways(has_gates, False, ())
    row, weight = _cancelling_row_and_weight(shape, dtype, device)
    single = row.new_empty(1, shape[0])
    multiply(row, weight, single, _tile_for(1, dtype, False))
    rows = row.expand(_LONG_TILE, -1).contiguous()
    found = single.new_empty(len(rows), shape[0])
    multiply(rows, weight, found, _tile_for(len(rows), dtype, True))
    agreeing = []
    for size in _CUBLAS_ROWS:
        if device.type == "cuda" and size * shape[0] <= _MAX_TRIED:
            by_cublas = single.new_empty(size, shape[0])
            _multiply_by_cublas(row.expand(size, -1).contiguous(), weight, by_cublas)
            if bool((by_cublas == single).all()):
                agreeing.append(size)
    return _Ways(has_gates, bool((found == single).all()), tuple(agreeing))


def _has_same_gates(num_inputs: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether values gated by the product's kernel have the bits of those gated after it."""
    row, weight = _cancelling_row_and_weight((_TRIED_OUTPUTS, num_inputs), dtype, device)
    product, gated = row.new_empty(1, len(weight)), row.new_empty(1, len(weight) // 2)
    tile = _tile_for(1, dtype, False)
    multiply(row, weight, product, tile)
    multiply(row, weight, gated, tile, has_gates=True)
    return torch.equal(gated, operations.gate(product))


def _cancelling_row_and_weight(
    shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return a row, [1, inputs], and a weight whose exact products are 0.

    A kernel's result is then pure rounding error, which reveals the order of summation: magnitudes
    differ so much that most additions round.
    """
    num_outputs, num_inputs = shape
    random = torch.Generator().manual_seed(0)
    half = num_inputs // 2
    order = torch.randperm(half, generator=random)
    row = torch.zeros(1, num_inputs)
    row[:, :half] = _numbers((1, half), random)
    row[:, half : 2 * half] = row[:, :half][:, order]
    weight = torch.zeros(min(num_outputs, _TRIED_OUTPUTS), num_inputs)
    weight[:, :half] = 16 * _numbers((len(weight), half), random)
    weight[:, half : 2 * half] = -weight[:, :half][:, order]
    repeats = -(-num_outputs // len(weight))
    repeated = weight.to(device, dtype).repeat(repeats, 1)[:num_outputs]
    return row.to(device, dtype), repeated.contiguous()


def _numbers(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    exponents = torch.randint(-4, 5, shape, generator=random)
    return torch.randn(shape, generator=random).ldexp(exponents)
