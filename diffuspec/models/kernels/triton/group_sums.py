"""Sums of the products of rows and a quantised weight, over each split of the inputs.

The weight's integers are multiplied with a row in the row's own type, in which they are exact, and
summed in float32; scales and offsets are applied to these sums. So weights are never rounded.
"""

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor

from diffuspec.models.kernels.quantized import Groups, Layout
from diffuspec.models.kernels.triton import quantized_kernels as kernels
from diffuspec.models.kernels.triton.launches import NUM_WARPS, num_stages_for, splits_for
from diffuspec.models.kernels.triton.matrix import OUTPUTS, GpuMatrix, Packing

_SUMMED = 64  # spans summed by one program
TILES = (16, 32, 64)  # rows of a tile; larger tiles need more registers than there are

# Sizes of the matrix for the trial.
_NUM_OUTPUTS, _NUM_INPUTS, _GROUP = 256, 4096, 128
_MAX_EXPONENT = 5


def multiply(matrix: GpuMatrix, rows: Tensor, tile: int) -> Tensor:
    """Return the products of rows [T, inputs] over each split of the inputs, [splits, T, outputs].

    A program processes `tile` rows.
    """
    num_rows, packing = len(rows), matrix.packing
    words, supers, codes, super_offsets, offset_codes, zeros = matrix.fields
    assert words is not None
    num_splits, per_split = splits_for(matrix.num_blocks, packing.num_chunks)
    shape = num_splits, num_rows, matrix.num_outputs
    sums = torch.empty(shape, dtype=torch.float32, device=rows.device)
    input_sums = words if super_offsets is None else _sums_of_spans(rows, packing)
    fields = (words if one is None else one for one in (codes, super_offsets, offset_codes, zeros))
    grid = triton.cdiv(num_rows, tile), matrix.num_blocks, num_splits
    kernels.multiply_groups[grid](
        rows,
        input_sums,
        words,
        supers,
        *fields,
        sums,
        num_rows,
        matrix.num_inputs,
        matrix.num_outputs,
        sums.stride(1),
        sums.stride(0),
        packing.num_chunks,
        per_split,
        packing.num_supers,
        BITS=packing.bits,
        ZERO=matrix.zero,
        UNIT=packing.unit,
        SPAN=packing.span,
        RATIO=packing.ratio,
        HAS_CODES=codes is not None,
        HAS_OFFSETS=super_offsets is not None,
        HAS_OFFSET_CODES=offset_codes is not None,
        HAS_ZEROS=zeros is not None,
        IS_WHOLE=matrix.num_inputs % packing.chunk == 0,
        ROWS=tile,
        OUTPUTS=OUTPUTS,
        PRECISION="ieee" if rows.dtype == torch.float32 else "tf32",
        num_warps=NUM_WARPS,
        num_stages=num_stages_for(
            OUTPUTS * packing.unit * 4, packing.chunk * tile * rows.itemsize, rows.device
        ),
    )
    return sums


def _sums_of_spans(rows: Tensor, packing: Packing) -> Tensor:
    """Return the sums of the inputs in each span, [spans, T] float32."""
    num_rows, num_spans = len(rows), packing.num_spans
    sums = torch.empty((num_spans, num_rows), dtype=torch.float32, device=rows.device)
    kernels.sum_spans[(num_rows, triton.cdiv(num_spans, _SUMMED))](
        rows, sums, num_rows, rows.shape[1], num_spans, SPAN=packing.span, SPANS=_SUMMED
    )
    return sums


def tile_for(num_rows: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the rows of a tile: the smallest size that holds all rows, if there is one."""
    tiles = agreeing_tiles(dtype, device)
    return next((tile for tile in tiles if tile >= num_rows), tiles[-1])


@functools.cache
@torch.inference_mode()
def agreeing_tiles(dtype: torch.dtype, device: torch.device) -> tuple[int, ...]:
    """Return the tile sizes that agree in every bit on this GPU, ascending; at least one."""
    if dtype == torch.float32:  # larger tiles need too many registers
        return TILES[:1]
    matrix, rows = _cancelling_matrix_and_rows(dtype, device)
    found = [multiply(matrix, rows, tile) for tile in TILES]
    groups = [
        tuple(tile for tile, other in zip(TILES, found, strict=True) if torch.equal(one, other))
        for one in found
    ]
    return max(groups, key=lambda tiles: (len(tiles), tiles[-1]))


def _cancelling_matrix_and_rows(
    dtype: torch.dtype, device: torch.device
) -> tuple[GpuMatrix, Tensor]:
    """Return a matrix and rows whose exact products are 0.

    Each input of a group occurs twice, the second time with the sign of its weight flipped. The
    result is pure rounding error, which reveals the order of summation.
    """
    random = torch.Generator().manual_seed(0)
    half, num_groups = _GROUP // 2, _NUM_INPUTS // _GROUP
    numbers = torch.randint(-127, 128, (_NUM_OUTPUTS, num_groups, half), generator=random)
    order = torch.randperm(half, generator=random)
    numbers = torch.cat((numbers, -numbers[:, :, order]), 2).flatten(1).to(torch.int8)
    scales = torch.randn(_NUM_OUTPUTS, num_groups, generator=random).half()
    shape = _NUM_OUTPUTS, _NUM_INPUTS
    matrix = GpuMatrix(Layout(8, _GROUP), shape, [Groups(numbers, scales)], device)
    parts = torch.randn(TILES[-1], num_groups, half, generator=random)
    parts = parts.ldexp(torch.randint(-_MAX_EXPONENT, _MAX_EXPONENT, parts.shape, generator=random))
    return matrix, torch.cat((parts, parts[:, :, order]), 2).flatten(1).to(device, dtype)
