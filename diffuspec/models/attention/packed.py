"""Packed ragged attention over the cache.

The new rows of all sequences are packed into one sequence, [1, T], without padding them to equal
lengths. A PackedBatch knows which rows belong to which cache slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from diffuspec.models.attention import triton as triton_attention
from diffuspec.models.attention.cache import KVCache
from diffuspec.models.attention.cpu import CpuAttention, can_attend, pieces
from diffuspec.models.attention.masks import View, listed_mask, ordered_mask
from diffuspec.models.attention.scoring import Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.attention.torch import attend, attend_in_blocks
from diffuspec.models.kernels.decoder import AttentionPieces

MAX_SCORES = 1 << 24  # attention scores held at a time; longer segments go in chunks of rows


class PackedBatch:
    """The `Attention` of one forward: its segments' cache rows and masks, shared by all layers.

    The forward has num_padding rows after those of the segments; their output is zero. With a block
    size, columns are taken in blocks of that size, so that a row's output does not depend, to the
    last bit, on the number of rows after it. Without one, our own kernels make it depend only on
    the rows that it sees.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        cache: KVCache,
        block_size: int | None = None,
        num_padding: int = 0,
    ) -> None:
        self._segments, self._cache = segments, cache
        self._block_size, self._num_padding = block_size, num_padding
        has_kernel = block_size is None and triton_attention.can_attend(cache.layers(0)[0])
        self.on_gpu = (
            triton_attention.TritonAttention(segments, cache, num_padding) if has_kernel else None
        )

    @cached_property
    def _parts(self) -> list[_SegmentAttention]:
        """Segment by segment: all layers on a CPU, those that have no kernel on a GPU."""
        cache, size, has_kernel = self._cache, self._block_size, self._has_row_kernel
        return [_SegmentAttention(segment, cache, size, has_kernel) for segment in self._segments]

    @property
    def _has_row_kernel(self) -> bool:
        return self._block_size is None and can_attend(self._cache.layers(0)[0])

    @cached_property
    def pieces(self) -> AttentionPieces | None:
        """The rows for layers that are one operation; None if there is no kernel for them."""
        cache = self._cache
        if self._num_padding or not self._has_row_kernel:
            return None
        return AttentionPieces(
            [
                (cache.memory(one.slot), list(pieces(one, cache)), one.num_rows)
                for one in self._segments
            ]
        )

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        if self.on_gpu is not None and scoring.is_plain:
            return self.on_gpu.attend(layer, query, key, value, scoring)
        if len(self._parts) == 1 and not self._num_padding:
            return self._parts[0].attend(layer, query, key, value, scoring)
        outputs, first = [], 0
        for part in self._parts:
            rows = slice(first, first + part.num_rows)
            first = rows.stop
            mine = query[:, rows], key[:, rows], value[:, rows]
            outputs.append(part.attend(layer, *mine, scoring))
        if self._num_padding:
            outputs.append(outputs[0].new_zeros(self._num_padding, *outputs[0].shape[1:]))
        return torch.cat(outputs)


class _SegmentAttention:
    """The attention of one segment."""

    def __init__(
        self, segment: Segment, cache: KVCache, block_size: int | None, has_kernel: bool
    ) -> None:
        self.num_rows = segment.num_rows
        self._segment = segment
        self._block_size = block_size
        self._start = segment.start
        self._end = segment.start + segment.num_rows
        self._layers = cache.layers(segment.slot)
        self._views: dict[int | None, View] = {}  # a view for each window
        self.rows = CpuAttention(segment, cache) if has_kernel else None

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> Tensor:
        if self.rows is not None and scoring.is_plain:
            return self.rows.attend(layer, query, key, value, scoring)
        view = self._view(scoring.window)
        keys, values, mask = self._layers[2 * layer], self._layers[2 * layer + 1], view.mask
        keys.narrow(1, self._start, self.num_rows).copy_(key)
        values.narrow(1, self._start, self.num_rows).copy_(value)
        keys = keys.narrow(1, view.first, view.num_columns)
        values = values.narrow(1, view.first, view.num_columns)
        if self._block_size is not None:
            assert mask is not None
            return attend_in_blocks(query, keys, values, mask, scoring, self._block_size)
        num_scores = query.shape[0] * keys.shape[1]
        if self.num_rows * num_scores <= MAX_SCORES:
            return attend(query, keys, values, mask, scoring)
        step = max(1, MAX_SCORES // num_scores)
        outputs = []
        for first in range(0, self.num_rows, step):
            rows = slice(first, first + step)
            row_mask = None if mask is None else mask[rows]
            outputs.append(attend(query[:, rows], keys, values, row_mask, scoring))
        return torch.cat(outputs)

    def _view(self, window: int | None) -> View:
        """Return the view of layers with that window: position p sees positions > p - window.

        All rows are at or after the segment's start, so columns further back are left out.
        """
        if window is not None and window >= self._end:
            window = None
        if window not in self._views:
            first = 0 if window is None else max(0, self._start + 1 - window)
            if self._block_size is None:
                self._views[window] = self._make_view(first, window)
            else:
                self._views[window] = self._make_block_view(first, window, self._block_size)
        return self._views[window]

    def _make_view(self, first: int, window: int | None) -> View:
        segment, num_rows = self._segment, self.num_rows
        num_before = 0 if window is None else self._start - first
        mask: Tensor | None = None
        if not isinstance(segment.visible, (str, int)):
            mask = listed_mask(
                segment.visible, segment.positions, self._start, num_before, window
            ).to(self._layers[0])
        elif num_rows > 1 and (window is not None or segment.num_causal):
            mask = self._ordered_mask(num_before, window)
        return View(first, self._end - first, mask)

    def _make_block_view(self, first: int, window: int | None, size: int) -> View:
        """Return a view of whole blocks, with a mask for all of their columns."""
        first, end = first // size * size, -(-self._end // size) * size
        mask = torch.full((self.num_rows, end - first), -torch.inf).to(self._layers[0])
        mask[:, : self._end - first] = self._ordered_mask(self._start - first, window)
        return View(first, end - first, mask)

    def _ordered_mask(self, num_before: int, window: int | None) -> Tensor:
        num_causal, like = self._segment.num_causal, self._layers[0]
        return ordered_mask(self.num_rows, num_causal, num_before, window, like.dtype, like.device)
