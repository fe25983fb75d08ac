"""Splits the blocks in which GGUF files store weights into their fields, without rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diffuspec.models.kernels.quantized import Groups, Layout

_NUM_SUBBLOCKS = 8  # sub-blocks in a block of Q4_K and Q5_K


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A GGUF format: blocks of successive inputs of one output."""

    name: str
    num_inputs: int  # inputs in a block
    num_bytes: int
    layout: Layout
    split: Callable[[Tensor], Groups]  # takes the bytes of blocks, [outputs, blocks, bytes]


def _halves(blocks: Tensor, start: int) -> Tensor:
    """Return the float16 number at an offset of each block, [outputs, blocks]."""
    return blocks[:, :, start : start + 2].contiguous().view(torch.float16)[:, :, 0]


def _nibbles(numbers: Tensor) -> Tensor:
    """Return the low halves of the last dimension's bytes, followed by the high ones."""
    both = numbers.new_empty(*numbers.shape[:-1], 2 * numbers.shape[-1])
    low, high = both.chunk(2, -1)
    torch.bitwise_and(numbers, 15, out=low)
    torch.bitwise_right_shift(numbers, 4, out=high)
    return both


def _rows(blocks: Tensor, *shape: int) -> Tensor:
    """Return the bytes of each block as one row per output."""
    return blocks.reshape(*blocks.shape[:2], *shape)


def _q4_0(blocks: Tensor) -> Groups:
    return Groups(_nibbles(blocks[:, :, 2:]).flatten(1), _halves(blocks, 0))


def _q4_1(blocks: Tensor) -> Groups:
    numbers = _nibbles(blocks[:, :, 4:]).flatten(1)
    return Groups(numbers, _halves(blocks, 0), offsets=_halves(blocks, 2))


def _q8_0(blocks: Tensor) -> Groups:
    return Groups(blocks[:, :, 2:].flatten(1).view(torch.int8), _halves(blocks, 0))


def _codes(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the 6-bit scales and minima in 12 bytes of each block, [outputs, groups]."""
    scales, minima, both = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    high_scales, high_minima = scales >> 6 << 4, minima >> 6 << 4
    found = (
        torch.cat((scales & 63, both & 15 | high_scales), -1),
        torch.cat((minima & 63, both >> 4 | high_minima), -1),
    )
    return found[0].flatten(1).view(torch.int8), found[1].flatten(1).view(torch.int8)


def _k_groups(blocks: Tensor, numbers: Tensor) -> Groups:
    scales, minima = _codes(blocks[:, :, 4:16])
    return Groups(numbers.flatten(1), _halves(blocks, 0), scales, -_halves(blocks, 2), minima)


def _q4_k(blocks: Tensor) -> Groups:
    return _k_groups(blocks, _nibbles(_rows(blocks[:, :, 16:], 4, 32)))


def _q5_k(blocks: Tensor) -> Groups:
    low = _rows(_nibbles(_rows(blocks[:, :, 48:], 4, 32)), _NUM_SUBBLOCKS, 32)
    shifts = torch.arange(_NUM_SUBBLOCKS, dtype=torch.uint8, device=blocks.device)[:, None]
    high = blocks[:, :, None, 16:48] >> shifts & 1
    return _k_groups(blocks, (low | high << 4).view(torch.int8))


def _q6_k(blocks: Tensor) -> Groups:
    low = _rows(_nibbles(_rows(blocks[:, :, :128], 2, 64)), 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None]
    high = _rows(blocks[:, :, 128:192], 2, 1, 32) >> shifts & 3
    numbers = (low | high << 4).view(torch.int8) - 32
    codes = blocks[:, :, 192:208].flatten(1).view(torch.int8)
    return Groups(numbers.flatten(1), _halves(blocks, 208), codes)


# Formats by their type number in GGUF files.
FORMATS: Mapping[int, BlockFormat] = {
    2: BlockFormat("Q4_0", 32, 18, Layout(4, 32, zero=8), _q4_0),
    3: BlockFormat("Q4_1", 32, 20, Layout(4, 32), _q4_1),
    8: BlockFormat("Q8_0", 32, 34, Layout(8, 32), _q8_0),
    12: BlockFormat("Q4_K", 256, 144, Layout(4, 32, ratio=8), _q4_k),
    13: BlockFormat("Q5_K", 256, 176, Layout(8, 32, ratio=8), _q5_k),
    14: BlockFormat("Q6_K", 256, 210, Layout(8, 16, ratio=16), _q6_k),
}


def type_name(number: int) -> str:
    """Return the name of a type in GGUF files, or its number if the package gguf has no name."""
    from gguf import GGMLQuantizationType  # an optional dependency

    try:
        return GGMLQuantizationType(number).name
    except ValueError:
        return f"type {number}"


# Types of unquantised numbers.
PLAIN_TYPES: Mapping[int, torch.dtype] = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
