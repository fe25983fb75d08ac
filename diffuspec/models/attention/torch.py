"""Attention of one segment by torch's operations, with masks.

There are two kernels, both: query [heads, rows, dim], keys and values [kv_heads, columns, dim] ->
[rows, heads, dim]. Heads that share a key head are treated as additional rows. Masks are additive:
0 where a new row sees a column, -inf where it does not. Columns are some of the cached rows before
the new ones, then the new rows themselves. With a window, a row at position p sees positions above
p - window only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.core.pages import PAGE_SIZE
from diffuspec.models.attention.interface import Attention, Projections, Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.pages.store import PageStore

# attention scores held at a time; longer segments are processed in chunks of rows
MAX_SCORES = 1 << 24
_MAX_CACHED_ELEMENTS = 1 << 14  # larger masks are rebuilt in every forward
_MAX_CACHED_MASKS = 256


class _OrderedMask(NamedTuple):
    """The mask of rows at consecutive positions, [num_rows, num_before + num_rows + num_after].

    The first num_causal rows see no later row, the others see all rows.
    """

    num_rows: int
    num_causal: int
    num_before: int
    num_after: int
    window: int | None
    dtype: torch.dtype
    device: torch.device

    @property
    def num_columns(self) -> int:
        return self.num_before + self.num_rows + self.num_after

    def tensor(self) -> torch.Tensor:
        """Return the mask. Small ones are cached: the caller must not write to the result."""
        is_small = self.num_rows * self.num_columns <= _MAX_CACHED_ELEMENTS
        return _cached_tensor(self) if is_small else _make_tensor(self)


def _make_tensor(rows: _OrderedMask) -> torch.Tensor:
    shape = rows.num_rows, rows.num_columns
    nothing = torch.full(shape, -torch.inf, dtype=rows.dtype, device=rows.device)
    mask = nothing.triu(rows.num_before + 1)
    mask[rows.num_causal :] = 0
    return mask if rows.window is None else mask.add_(nothing.tril_(rows.num_before - rows.window))


_cached_tensor = lru_cache(maxsize=_MAX_CACHED_MASKS)(_make_tensor)


def _listed_mask(
    visible: NDArray[np.bool_],
    positions: NDArray[np.integer],
    start: int,
    num_before: int,
    window: int | None,
) -> torch.Tensor:
    """Return the mask of rows that see each other as in `visible`, [n, num_before + n] float32.

    The first num_before columns hold positions up to start - 1; every row within the window sees
    them.
    """
    old = np.ones((len(visible), num_before), np.bool_)
    seen = np.concatenate([old, visible], axis=1) if num_before else visible
    if window is not None:
        columns = np.concatenate([np.arange(start - num_before, start), positions])
        seen = seen & (positions[:, None] - columns < window)
    return torch.from_numpy(np.where(seen, np.float32(0), np.float32(-np.inf)))


@dataclass(slots=True, eq=False)
class _View:
    """A range of cache columns, and which of them the rows of a segment see."""

    first: int
    num_columns: int
    mask: torch.Tensor | None  # additive, for the last columns; all rows see the first ones


class TorchAttention(Attention):
    """The attention of one segment, with any scoring and on any device.

    With a block size, columns are processed in blocks of that size, so that a row's output is
    bitwise independent of the number of rows after it.
    """

    def __init__(self, segment: Segment, store: PageStore, block_size: int | None = None) -> None:
        assert not store.transposes_keys
        self._segment, self._block_size, self._store = segment, block_size, store
        self._start, self._end = segment.start, segment.end
        rows = np.arange(self._start, self._end)
        pages = segment.table.pages.astype(np.int64)
        self._pages = torch.from_numpy(pages).to(store.device)
        self._new_pages = self._pages[rows // PAGE_SIZE]
        self._new_rows = torch.from_numpy(rows % PAGE_SIZE).to(store.device)
        self._views: dict[int | None, _View] = {}  # by window

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        view, layers = self._view(scoring.window), self._store.layer(layer)
        mask = view.mask
        for pages, new in zip(layers, (rows.key, rows.value), strict=True):
            pages[self._new_pages, :, self._new_rows] = new.transpose(0, 1)
        keys, values = (self._columns(pages, view) for pages in layers)
        if self._block_size is not None:
            assert mask is not None
            return attend_in_blocks(rows.query, keys, values, mask, scoring, self._block_size)
        num_rows, num_scores = self._segment.num_rows, len(rows.query) * keys.shape[1]
        if num_rows * num_scores <= MAX_SCORES:
            return attend(rows.query, keys, values, mask, scoring)
        step = max(1, MAX_SCORES // num_scores)
        queries = torch.split(rows.query, step, dim=1)
        masks = [None] * len(queries) if mask is None else torch.split(mask, step)
        return torch.cat(
            [
                attend(query, keys, values, its_mask, scoring)
                for query, its_mask in zip(queries, masks, strict=True)
            ]
        )

    def _columns(self, pages: Tensor, view: _View) -> Tensor:
        """Return a copy of a view's columns, [kv_heads, columns, dim]; missing ones are zero."""
        first, end = view.first // PAGE_SIZE, -(-(view.first + view.num_columns) // PAGE_SIZE)
        mine = pages.transpose(0, 1).index_select(1, self._pages[first:end]).flatten(1, 2)
        if (missing := (end - first) * PAGE_SIZE - mine.shape[1]) > 0:
            mine = torch.nn.functional.pad(mine, (0, 0, 0, missing))
        return mine.narrow(1, view.first - first * PAGE_SIZE, view.num_columns)

    def _view(self, window: int | None) -> _View:
        """Return the view of layers with a window: position p sees positions > p - window.

        All rows are at or after the segment's start, so columns before its window are left out.
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

    @property
    def _like(self) -> Tensor:
        return self._store.layer(0)[0]

    def _make_view(self, first: int, window: int | None) -> _View:
        segment, num_rows = self._segment, self._segment.num_rows
        num_before = 0 if window is None else self._start - first
        mask: Tensor | None = None
        if not isinstance(segment.visible, (str, int)):
            mask = _listed_mask(
                segment.visible, segment.positions, self._start, num_before, window
            ).to(self._like)
        elif num_rows > 1 and (window is not None or segment.num_causal):
            mask = self._ordered_mask(num_before, window)
        return _View(first, segment.seen_end - first, mask)

    def _make_block_view(self, first: int, window: int | None, size: int) -> _View:
        """Return a view of whole blocks, with a mask for all their columns."""
        first, end = first // size * size, -(-self._end // size) * size
        mask = torch.full((self._segment.num_rows, end - first), -torch.inf).to(self._like)
        mask[:, : self._end - first] = self._ordered_mask(self._start - first, window)
        return _View(first, end - first, mask)

    def _ordered_mask(self, num_before: int, window: int | None) -> Tensor:
        segment, like = self._segment, self._like
        shape = segment.num_rows, segment.num_causal, num_before, segment.num_after
        return _OrderedMask(*shape, window, like.dtype, like.device).tensor()


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scoring: Scoring,
) -> Tensor:
    """Attend in three operations. The mask covers the last columns; all rows see the others."""
    num_heads, num_rows, dim = query.shape
    num_kv_heads, num_columns, _ = keys.shape
    packed = query.reshape(num_kv_heads, -1, dim)
    scores = torch.baddbmm(
        keys.new_empty(()), packed, keys.transpose(1, 2), beta=0, alpha=scoring.scaling
    )  # [kv_heads, heads / kv_heads * rows, columns]
    _cap(scores, scoring.softcap)
    if mask is not None:
        masked = num_columns - mask.shape[1]
        scores.view(num_heads, num_rows, num_columns)[:, :, masked:].add_(mask)
    if scoring.sinks is not None:
        sinks = _for_rows(scoring.sinks, num_kv_heads, num_rows).to(scores.dtype)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
    output = torch.bmm(weights[..., :num_columns], values)
    return output.view(num_heads, num_rows, dim).transpose(0, 1)


def attend_in_blocks(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scoring: Scoring,
    block_size: int,
) -> Tensor:
    """Attend over blocks of columns, one after the other, with a running softmax.

    A masked block does not change a row's running sums, and every product has the same shape
    whatever the number of columns, so the result is bitwise independent of the number of columns.
    The mask covers all columns, a multiple of block_size.
    """
    num_heads, num_rows, dim = query.shape
    num_kv_heads, num_columns, _ = keys.shape
    packed = query.reshape(num_kv_heads, -1, dim)
    if scoring.sinks is None:
        lowest = torch.finfo(torch.float32).min  # finite, because the first blocks may be masked
        highest = torch.full((num_kv_heads, packed.shape[1], 1), lowest, device=query.device)
        total = torch.zeros_like(highest)
    else:  # like a column seen already, with weight exp(0) and no value
        highest = _for_rows(scoring.sinks, num_kv_heads, num_rows).float()
        total = torch.ones_like(highest)
    output = torch.zeros(packed.shape, device=query.device)
    for first in range(0, num_columns, block_size):
        block = slice(first, first + block_size)
        scores = torch.bmm(packed, keys[:, block].transpose(1, 2)).float() * scoring.scaling
        _cap(scores, scoring.softcap)
        scores.view(num_heads, num_rows, block_size).add_(mask[:, block])
        previous, highest = highest, torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights = (scores - highest).exp()
        shrink = (previous - highest).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        output = output * shrink + torch.bmm(weights.to(values.dtype), values[:, block]).float()
    return (output / total).to(values.dtype).view(num_heads, num_rows, dim).transpose(0, 1)


def _cap(scores: Tensor, softcap: float | None) -> None:
    """Limit scores to the range -softcap to softcap, in place."""
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)


def _for_rows(sinks: Tensor, num_kv_heads: int, num_rows: int) -> Tensor:
    """Expand the sinks to rows packed by key head, [kv_heads, heads / kv_heads * rows, 1]."""
    return sinks.view(num_kv_heads, -1, 1).expand(-1, -1, num_rows).reshape(num_kv_heads, -1, 1)
