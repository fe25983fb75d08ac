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

from diffuspec.models.kernels.triton import linear_kernels
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

    def num_bytes(self, itemsize: int) -> int:
        """Bytes of shared memory of a unit."""
        return (self.rows + self.outputs) * self.unit * itemsize

    def num_stages(self, itemsize: int, device: torch.device) -> int:
        """Number of units to have in flight."""
        most = (shared_bytes(device) - _OTHER_BYTES) // self.num_bytes(itemsize)
        return max(1, min(_MAX_STAGES, most))


def _tile_for(num_rows: int, dtype: torch.dtype, has_long_tiles: bool) -> _Tile:
    if dtype == torch.float32:  # larger tiles need more registers than there are
        return _Tile(_TILES[0], 32, 32, 4)
    if num_rows > _TILES[-1] and has_long_tiles:
        return _Tile(_LONG_TILE, 128, 64, 8)
    rows = next((tile for tile in _TILES if tile >= num_rows), _TILES[-1])
    return _Tile(rows, 64, 128, 4)


class _Prompts(NamedTuple):
    """How products of many rows get the bits of those of few."""

    has_long_tiles: bool
    cublas_rows: tuple[int, ...]  # numbers of rows in which cuBLAS agrees, descending

    def pieces(self, num_rows: int) -> Iterator[tuple[int, bool]]:
        """Yield numbers of rows that add up to num_rows, and whether cuBLAS multiplies them."""
        while num_rows > 0:
            whole = next((size for size in self.cublas_rows if size <= num_rows), None)
            yield whole or num_rows, whole is not None
            num_rows -= whole or num_rows


class LinearProduct:
    """A `Product` with a weight, [outputs, inputs]; outputs have the type `dtype`."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        self.weight, self._bias, self._type = weight.contiguous(), bias, dtype
        self.num_outputs, self._num_inputs = weight.shape
        # No trial can run while steps are being captured.
        self._prompts = _try_prompts(tuple(weight.shape), weight.dtype, dtype, weight.device)

    def __call__(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, self._num_inputs).contiguous()
        outputs = torch.empty(len(rows), self.num_outputs, dtype=self._type, device=rows.device)
        first = 0
        for size, is_by_cublas in self._prompts.pieces(len(rows)):
            piece, to = rows[first : first + size], outputs[first : first + size]
            if is_by_cublas:
                _multiply_by_cublas(piece, self.weight, to)
                if self._bias is not None:
                    to.add_(self._bias)
            else:
                tile = _tile_for(size, rows.dtype, self._prompts.has_long_tiles)
                multiply(piece, self.weight, self._bias, to, tile)
            first += size
        return outputs.view(*inputs.shape[:-1], self.num_outputs)


def multiply(
    rows: Tensor, weight: Tensor, bias: Tensor | None, outputs: Tensor, tile: _Tile
) -> None:
    """Write the products of rows [T, inputs] with a weight, plus the bias, [T, outputs]."""
    num_outputs, num_inputs = weight.shape
    has_descriptor = _takes_descriptors(weight)
    operand = weight
    if has_descriptor:
        operand = TensorDescriptor.from_tensor(weight, [tile.outputs, tile.unit])
    grid = triton.cdiv(len(rows), tile.rows) * triton.cdiv(num_outputs, tile.outputs)
    linear_kernels.multiply[(grid,)](
        rows,
        operand,
        weight if bias is None else bias,
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
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages(rows.itemsize, rows.device),
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
def _try_prompts(
    shape: tuple[int, int], dtype: torch.dtype, out_dtype: torch.dtype, device: torch.device
) -> _Prompts:
    """Find how products of many rows have the bits of a single row's."""
    num_outputs = shape[0]
    if dtype == torch.float32 or dtype != out_dtype:
        return _Prompts(False, ())
    row, weight = _cancelling_row_and_weight(shape, dtype, device)
    single = torch.empty(1, num_outputs, dtype=dtype, device=device)
    multiply(row, weight, None, single, _tile_for(1, dtype, False))
    rows = row.expand(_LONG_TILE, -1).contiguous()
    found = single.new_empty(len(rows), num_outputs)
    multiply(rows, weight, None, found, _tile_for(len(rows), dtype, True))
    agreeing = []
    for size in _CUBLAS_ROWS:
        if device.type == "cuda" and size * num_outputs <= _MAX_TRIED:
            by_cublas = single.new_empty(size, num_outputs)
            _multiply_by_cublas(row.expand(size, -1).contiguous(), weight, by_cublas)
            if bool((by_cublas == single).all()):
                agreeing.append(size)
    return _Prompts(bool((found == single).all()), tuple(agreeing))


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
