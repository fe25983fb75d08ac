"""Products of rows with quantised weights on a GPU.

A row's output is bitwise independent of the other rows: inputs are summed in an order that depends
only on the weight's shape, and tiles of any number of rows use one instruction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
import triton
from torch import Tensor

from diffuspec.models.kernels.products import FusedProduct, Int8Matrix
from diffuspec.models.kernels.triton import operations, quantized_kernels as kernels
from diffuspec.models.kernels.triton.group_sums import TILES, multiply, tile_for
from diffuspec.models.kernels.triton.launches import (
    NUM_PROGRAMS,
    NUM_WARPS,
    join_splits,
    num_stages_for,
    splits_for,
)
from diffuspec.models.kernels.triton.matrix import OUTPUTS, GpuMatrix

_MAX_PIECE = 512  # rows whose splits are held in memory at a time
_UNIT = 128  # 8-bit inputs multiplied at a time


class SplitProduct(FusedProduct, ABC):
    """A product whose splits are joined by a second launch, which also adds and gates."""

    format: str  # in words
    _is_one_matrix = True

    def __init__(self, shape: tuple[int, int], bias: Tensor | None, dtype: torch.dtype) -> None:
        self.num_outputs, self.num_inputs = shape
        self._bias, self._type = bias, dtype

    def __call__(self, inputs: Tensor, added: Tensor | None = None) -> Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1]).contiguous()
        outputs = rows.new_empty(len(rows), self.num_outputs)
        for place in _pieces(len(rows)):
            more = None if added is None else added[place]
            self._write(rows[place], outputs[place], more, has_gates=False)
        return outputs.view(*inputs.shape[:-1], self.num_outputs)

    def gated(self, inputs: Tensor) -> Tensor:
        if self._bias is not None or not self._is_one_matrix:
            return operations.gate(self(inputs))
        outputs = inputs.new_empty(len(inputs), self.num_outputs // 2)
        for place in _pieces(len(inputs)):
            self._write(inputs[place].contiguous(), outputs[place], None, has_gates=True)
        return outputs

    @abstractmethod
    def _write(
        self, rows: Tensor, outputs: Tensor, added: Tensor | None, has_gates: bool
    ) -> None: ...


def _pieces(num_rows: int) -> Iterator[slice]:
    """Yield where at most _MAX_PIECE rows are at a time."""
    for first in range(0, num_rows, _MAX_PIECE):
        yield slice(first, first + _MAX_PIECE)


class GroupsProduct(SplitProduct):
    """A `Product` whose weight is one or more matrices, one after another."""

    def __init__(
        self, matrices: Sequence[GpuMatrix], bias: Tensor | None, dtype: torch.dtype
    ) -> None:
        num_outputs, layout = sum(matrix.num_outputs for matrix in matrices), matrices[0].layout
        super().__init__((num_outputs, matrices[0].num_inputs), bias, dtype)
        self.format = f"{layout.bits} bits in groups of {layout.group}"
        self._matrices = _joined(matrices)
        self._is_one_matrix = len(self._matrices) == 1

    @property
    def weight(self) -> Tensor:
        rows = [
            matrix.rows(torch.arange(matrix.num_outputs, device=matrix.device))
            for matrix in self._matrices
        ]
        return torch.cat(rows).to(self._type)

    def _write(self, rows: Tensor, outputs: Tensor, added: Tensor | None, has_gates: bool) -> None:
        tile, first = tile_for(len(rows), rows.dtype), 0
        for matrix in self._matrices:
            place = slice(first, first + matrix.num_outputs)
            join_splits(
                multiply(matrix, rows, tile),
                outputs[:, place],
                bias=None if self._bias is None else self._bias[place],
                added=None if added is None else added[:, place],
                has_gates=has_gates,
            )
            first += matrix.num_outputs


def _joined(matrices: Sequence[GpuMatrix]) -> list[GpuMatrix]:
    """Concatenate the matrices as far as possible."""
    joined = list(matrices[:1])
    for matrix in matrices[1:]:
        if joined[-1].can_be_joined_to(matrix):
            joined[-1] = joined[-1].joined_to(matrix)
        else:
            joined.append(matrix)
    return joined


class Int8Product(SplitProduct):
    """A `Product` in int8; rows are rounded to 8 bits as well, and sums are exact."""

    format = "8 bits and rounded inputs"

    def __init__(self, matrix: Int8Matrix, bias: Tensor | None, dtype: torch.dtype) -> None:
        num_outputs, num_inputs = matrix.numbers.shape
        super().__init__((num_outputs, num_inputs), bias, dtype)
        self._numbers, self._scales = matrix.numbers.contiguous(), matrix.scales.contiguous()

    @property
    def weight(self) -> Tensor:
        return self.rows(torch.arange(self.num_outputs, device=self._numbers.device)).to(self._type)

    def rows(self, outputs: Tensor) -> Tensor:
        """Return the weights of some outputs in float32, [outputs, inputs]."""
        return self._numbers[outputs] * self._scales[outputs, None]

    def _write(self, rows: Tensor, outputs: Tensor, added: Tensor | None, has_gates: bool) -> None:
        rounded = torch.empty_like(rows, dtype=torch.int8)
        row_scales = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
        width = triton.next_power_of_2(self.num_inputs)
        kernels.round_rows[(len(rows),)](
            rows, rounded, row_scales, self.num_inputs, WIDTH=width, num_warps=NUM_WARPS
        )
        join_splits(
            self._sums(rounded),
            outputs,
            bias=self._bias,
            added=added,
            has_gates=has_gates,
            scales=self._scales,
            row_scales=row_scales,
        )

    def _sums(self, rows: Tensor) -> Tensor:
        """Return the sums of rows over each split of the inputs, [splits, T, outputs] int32."""
        num_rows, num_blocks = len(rows), triton.cdiv(self.num_outputs, OUTPUTS)
        num_splits, per_split = splits_for(
            num_blocks, triton.cdiv(self.num_inputs, _UNIT), NUM_PROGRAMS
        )
        shape = num_splits, num_rows, self.num_outputs
        sums = torch.empty(shape, dtype=torch.int32, device=rows.device)
        tile = next((tile for tile in TILES if tile >= num_rows), TILES[-1])
        kernels.multiply_int8[(triton.cdiv(num_rows, tile), num_blocks, num_splits)](
            rows,
            self._numbers,
            sums,
            num_rows,
            self.num_inputs,
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
