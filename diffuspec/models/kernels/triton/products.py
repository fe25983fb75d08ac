"""Products of rows with quantised weights on a GPU.

A row's output is bitwise independent of the other rows: inputs are summed in an order that depends
only on the weight's shape, and only tile sizes that agree are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import triton
from torch import Tensor

from diffuspec.models.kernels.products import Int8Matrix
from diffuspec.models.kernels.triton import quantized_kernels as kernels
from diffuspec.models.kernels.triton.group_sums import TILES, agreeing_tiles, multiply, tile_for
from diffuspec.models.kernels.triton.launches import (
    NUM_WARPS,
    join_splits,
    num_stages_for,
    splits_for,
)
from diffuspec.models.kernels.triton.matrix import OUTPUTS, GpuMatrix

_MAX_PIECE = 512  # rows whose splits are held in memory at a time
_UNIT = 128  # 8-bit inputs multiplied at a time


class GroupsProduct:
    """A `Product` whose weight is one or more matrices, one after another."""

    def __init__(
        self, matrices: Sequence[GpuMatrix], bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        self._matrices, self._bias, self._type = _joined(matrices), bias, dtype
        self.num_outputs = sum(matrix.num_outputs for matrix in matrices)
        agreeing_tiles(dtype, matrices[0].device)  # no trial can run while steps are being captured

    @property
    def weight(self) -> Tensor:
        rows = [
            matrix.rows(torch.arange(matrix.num_outputs, device=matrix.device))
            for matrix in self._matrices
        ]
        return torch.cat(rows).to(self._type)

    def __call__(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1]).contiguous()
        outputs = rows.new_empty(len(rows), self.num_outputs)
        for piece, to in _pieces(rows, outputs):
            tile, first = tile_for(len(piece), piece.dtype, piece.device), 0
            for matrix in self._matrices:
                end = first + matrix.num_outputs
                bias = None if self._bias is None else self._bias[first:end]
                join_splits(multiply(matrix, piece, tile), bias, to[:, first:end])
                first = end
        return outputs.view(*inputs.shape[:-1], self.num_outputs)


def _pieces(rows: Tensor, outputs: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield at most _MAX_PIECE rows at a time, with the outputs to write for them."""
    return zip(torch.split(rows, _MAX_PIECE), torch.split(outputs, _MAX_PIECE), strict=True)


def _joined(matrices: Sequence[GpuMatrix]) -> list[GpuMatrix]:
    """Concatenate the matrices as far as possible."""
    joined = list(matrices[:1])
    for matrix in matrices[1:]:
        if joined[-1].can_be_joined_to(matrix):
            joined[-1] = joined[-1].joined_to(matrix)
        else:
            joined.append(matrix)
    return joined


class Int8Product:
    """A `Product` in int8; rows are rounded to 8 bits as well, and sums are exact."""

    def __init__(self, matrix: Int8Matrix, bias: Tensor | None, dtype: torch.dtype) -> None:
        self._numbers, self._scales = matrix.numbers.contiguous(), matrix.scales.contiguous()
        self._bias, self._type = bias, dtype
        self.num_outputs, self._num_inputs = self._numbers.shape

    @property
    def weight(self) -> Tensor:
        return self.rows(torch.arange(self.num_outputs, device=self._numbers.device)).to(self._type)

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the weights of some outputs in float32, [outputs, inputs]."""
        return self._numbers[outputs] * self._scales[outputs, None]

    def __call__(self, inputs: Tensor) -> Tensor:
        rows = inputs.reshape(-1, self._num_inputs).contiguous()
        outputs = rows.new_empty(len(rows), self.num_outputs)
        for piece, to in _pieces(rows, outputs):
            rounded = torch.empty_like(piece, dtype=torch.int8)
            row_scales = torch.empty(len(piece), dtype=torch.float32, device=piece.device)
            width = triton.next_power_of_2(self._num_inputs)
            kernels.round_rows[(len(piece),)](
                piece, rounded, row_scales, self._num_inputs, WIDTH=width, num_warps=NUM_WARPS
            )
            join_splits(self._sums(rounded), self._bias, to, self._scales, row_scales)
        return outputs.view(*inputs.shape[:-1], self.num_outputs)

    def _sums(self, rows: Tensor) -> Tensor:
        """Return the sums of rows over each split of the inputs, [splits, T, outputs] int32."""
        num_rows, num_blocks = len(rows), triton.cdiv(self.num_outputs, OUTPUTS)
        num_splits, per_split = splits_for(num_blocks, triton.cdiv(self._num_inputs, _UNIT))
        shape = num_splits, num_rows, self.num_outputs
        sums = torch.empty(shape, dtype=torch.int32, device=rows.device)
        tile = next((tile for tile in TILES if tile >= num_rows), TILES[-1])
        kernels.multiply_int8[(triton.cdiv(num_rows, tile), num_blocks, num_splits)](
            rows,
            self._numbers,
            sums,
            num_rows,
            self._num_inputs,
            self.num_outputs,
            sums.stride(0),
            per_split * _UNIT,
            UNIT=_UNIT,
            ROWS=tile,
            OUTPUTS=OUTPUTS,
            num_warps=NUM_WARPS,
            num_stages=num_stages_for(OUTPUTS * _UNIT, tile * _UNIT, rows.device),
        )
        return sums
