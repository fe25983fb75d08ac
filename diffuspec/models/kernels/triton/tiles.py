"""Sizes of tiles of rows whose sums have the same bits on this GPU, by a trial."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from diffuspec.models.kernels.quantized import Groups, Layout
from diffuspec.models.kernels.triton.group_sums import multiply
from diffuspec.models.kernels.triton.matrix import GpuMatrix

TILES = (16, 32, 64)  # rows; a larger tile needs more registers than there are

# Sizes and exponents of the trial's matrix.
_NUM_OUTPUTS, _NUM_INPUTS, _GROUP = 256, 4096, 128
_MAX_EXPONENT = 5


def tile_for(num_rows: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the rows of a tile: the fewest that take all of them at once, if they can."""
    tiles = agreeing_tiles(dtype, device)
    return next((tile for tile in tiles if tile >= num_rows), tiles[-1])


@functools.cache
@torch.inference_mode()
def agreeing_tiles(dtype: torch.dtype, device: torch.device) -> tuple[int, ...]:
    """Return the sizes of tiles that agree in every bit on this GPU, ascending; one at least."""
    if dtype == torch.float32:  # larger ones need too many registers
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
    """Return a matrix and rows whose true products are 0.

    Each input of a group stands twice, the second time with the number's other sign. What is left
    are the errors of rounding alone, which tell the order of a sum.
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
