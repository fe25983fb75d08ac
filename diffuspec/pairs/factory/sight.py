"""Which columns packed rows see, as a block mask of FlexAttention or as a dense mask."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface

from diffuspec.pairs.factory.packing import TILE

PACKED = "diffuspec_packed"  # name of the attention function, for transformers


def narrowed(sight: torch.Tensor, positions: torch.Tensor, window: int) -> torch.Tensor:
    """Return sight [4, R] limited to fewer than `window` positions before each row."""
    start, end, own_start, own_end = sight
    rows = torch.arange(len(positions), device=sight.device, dtype=sight.dtype)
    near = torch.maximum(start, start + positions - window + 1)
    return torch.stack([near, end, torch.maximum(own_start, rows - window + 1), own_end])


def dense_mask(sight: torch.Tensor) -> torch.Tensor:
    """Return which columns rows see, [R, R], for devices without FlexAttention and for tests."""
    columns = torch.arange(sight.shape[1], device=sight.device)
    return _visible(sight[:, :, None], columns)


def _visible(sight: Iterable[torch.Tensor], columns: torch.Tensor) -> torch.Tensor:
    start, end, own_start, own_end = sight
    in_text = torch.logical_and(columns >= start, columns < end)
    return in_text | torch.logical_and(columns >= own_start, columns < own_end)


class SightMask:
    """A block mask in buffers of its own: compiled layers see the same tensors in every batch."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        """num_rows: a multiple of TILE."""
        assert num_rows % TILE == 0, f"{num_rows} rows are not whole tiles"
        tiles = num_rows // TILE
        self._sight = torch.zeros(4, num_rows, dtype=torch.int32, device=device)
        self._tile_starts = TILE * torch.arange(tiles, device=device, dtype=torch.int32)

        def empty(*sizes: int) -> torch.Tensor:
            return torch.zeros(1, 1, *sizes, dtype=torch.int32, device=device)

        # Number and indices of the tiles of columns that tiles of rows see, and the reverse.
        self._forward = empty(tiles), empty(tiles, tiles)
        self._backward = empty(tiles), empty(tiles, tiles)
        start, end, own_start, own_end = self._sight

        def visible(
            batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor
        ) -> torch.Tensor:
            # Kernels load one number at a time.
            return _visible((start[row], end[row], own_start[row], own_end[row]), column)

        self.mask = BlockMask(
            (num_rows, num_rows),
            *self._forward,
            None,
            None,
            *self._backward,
            None,
            None,
            (TILE, TILE),
            visible,
        )

    @torch.no_grad()
    def set(self, sight: torch.Tensor) -> BlockMask:
        """Return the mask of other rows, sight [4, R]; the one returned before changes, too."""
        self._sight.copy_(sight)
        start, end, own_start, own_end = self._sight.view(4, -1, TILE)
        has_own = own_end > own_start
        far = torch.full_like(own_start, 2**30)
        seen = self._meets(start.amin(1), end.amax(1)) | self._meets(
            torch.where(has_own, own_start, far).amin(1), own_end.amax(1)
        )
        for (count, tiles), table in ((self._forward, seen), (self._backward, seen.T)):
            count.copy_(table.sum(1).expand_as(count))
            order = torch.argsort(table.logical_not().byte(), dim=1, stable=True)
            tiles.copy_(order.expand_as(tiles))
        return self.mask

    def _meets(self, start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        """Return which tiles of columns meet the ranges of tiles of rows, [tiles, tiles]."""
        columns = self._tile_starts
        return (start[:, None] < columns + TILE) & (end[:, None] > columns)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: BlockMask,
    scaling: float | None = None,
    softcap: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Return the attention's output [1, R, heads, columns], as transformers' layers call it."""

    def capped(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        assert softcap is not None
        return softcap * torch.tanh(score / softcap)

    output = flex_attention(
        query.to(value.dtype),
        key.to(value.dtype),
        value,
        score_mod=None if softcap is None else capped,
        block_mask=attention_mask,
        scale=scaling or 1 / math.sqrt(query.shape[-1]),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(output, torch.Tensor)
    return output.transpose(1, 2), None


AttentionInterface.register(PACKED, attend)


@contextmanager
def attention(model: Any, name: str) -> Iterator[None]:
    """Let a model of transformers use another of its attention functions."""
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before
