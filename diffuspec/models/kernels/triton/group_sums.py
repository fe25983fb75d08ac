"""Sums of the products of rows and a quantised weight, over each split of the inputs.

The weight's integers are multiplied with a row in the row's own type, in which they are exact, and
summed in float32; scales and offsets are applied to these sums. So weights are never rounded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from diffuspec.models.kernels.triton import quantized_kernels as kernels
from diffuspec.models.kernels.triton.launches import num_stages_for, splits_for
from diffuspec.models.kernels.triton.matrix import GpuMatrix, Packing

# Outputs of a program: with so few, tiles of any number of rows use one instruction, mma.m16n8k16,
# so that rows have the same bits in all of them. (With 64, Hopper's wgmma has one for each number.)
_OUTPUTS = 32
_NUM_PROGRAMS = 1200  # programs per launch: about nine small ones for each multiprocessor
_SUMMED = 64  # spans summed by one program
_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}
TILES = (16, 32, 64)  # rows of a tile; larger tiles need more registers than there are


def multiply(matrix: GpuMatrix, rows: Tensor, tile: int) -> Tensor:
    """Return the products of rows [T, inputs] over each split of the inputs, [splits, T, outputs].

    A program processes `tile` rows.
    """
    packing, starts, is_single = matrix.packing, matrix.starts, rows.dtype == torch.float32
    num_programs = triton.cdiv(matrix.num_outputs, _OUTPUTS)
    num_splits, per_split = splits_for(num_programs, packing.num_chunks, _NUM_PROGRAMS)
    sums = rows.new_empty(num_splits, len(rows), matrix.num_outputs, dtype=torch.float32)
    has_offsets = starts.super_offsets >= 0
    kernels.multiply_groups[(triton.cdiv(len(rows), tile), num_programs, num_splits)](
        rows,
        _sums_of_spans(rows, packing) if has_offsets else sums,
        matrix.words,
        matrix.scales,
        sums,
        len(rows),
        matrix.num_inputs,
        matrix.num_outputs,
        packing.num_chunks,
        per_split,
        BITS=packing.bits,
        ZERO=matrix.zero,
        UNIT=packing.unit,
        SPANS=packing.spans,
        RATIO=packing.ratio,
        SCALE_WORDS=matrix.scales.shape[2],
        SUPER=_TYPES[matrix.types.supers],
        CODES=starts.codes,
        SUPER_OFFSETS=starts.super_offsets,
        OFFSET_CODES=starts.offset_codes,
        ZEROS=starts.zeros,
        IS_WHOLE=matrix.num_inputs % packing.chunk == 0,
        ROWS=tile,
        OUTPUTS=_OUTPUTS,
        PRECISION="ieee" if is_single else "tf32",
        num_warps=_OUTPUTS // 16,  # so that each number is unpacked by one warp only
        num_stages=num_stages_for(
            _OUTPUTS * packing.unit * 4, packing.chunk * tile * rows.itemsize, rows.device
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


def tile_for(num_rows: int, dtype: torch.dtype) -> int:
    """Return the rows of a tile: the smallest size that holds all rows, if there is one."""
    if dtype == torch.float32:  # larger tiles need too many registers
        return TILES[0]
    return next((tile for tile in TILES if tile >= num_rows), TILES[-1])
