"""Attention of all segments of a forward on a GPU, in three kernel launches per layer.

A row's result is bitwise independent of the rest of the forward, and of which of the columns before
it are new.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.algorithm.transfers import to_device
from diffuspec.core.pages import PAGE_SIZE, num_pages_of
from diffuspec.models.attention.interface import Attention, Heads, Projections, Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.kernels.triton.availability import IS_OF_USE, is_available
from diffuspec.models.kernels.triton.table import (
    ALL,
    MAX_STEP_ROWS,
    PADDING,
    ColumnTable,
    tile_size,
    whole_splits,
)
from diffuspec.models.kernels.visible_columns import VisibleColumns
from diffuspec.models.pages.store import CacheShape, Pages, PageStore
from diffuspec.models.pages.table import PageTable

if IS_OF_USE:
    with contextlib.suppress(ImportError):  # torch without Triton: see `can_attend`
        from diffuspec.models.kernels.triton import attention as gpu_attention


R = TypeVar("R", Projections, Heads)

_NUM_TRIED = 400  # rows of a trial: several tiles and two splits


def can_attend(like: Tensor) -> bool:
    """Return whether there are kernels for tensors like this one."""
    return like.is_cuda and is_available()


class TritonAttention(Attention):
    """The attention of a forward's segments, in layers with plain scoring."""

    def __init__(self, segments: Sequence[Segment], store: PageStore, num_padding: int = 0) -> None:
        """num_padding: number of rows after those of the segments; their output is zero."""
        waves = list(_waves(segments))
        paddings = [0] * (len(waves) - 1) + [num_padding]
        self._waves = [
            _Wave(wave, store, padding) for wave, padding in zip(waves, paddings, strict=True)
        ]

    def step_table(self, group: int) -> ColumnTable | None:
        """Return the table of a step, in this process's memory; None if this is not a step.

        `group`: number of query heads that share a key head.
        """
        if len(self._waves) > 1 or self._waves[0].num_rows > MAX_STEP_ROWS:
            return None
        table = self._waves[0].table(group)
        return table if table.is_step else None

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        group = len(rows.query) // len(rows.key)
        return self._by_wave(rows, group, lambda wave, part: wave.attend(layer, part, scoring))

    def attend_heads(self, layer: int, heads: Heads, scoring: Scoring) -> Tensor:
        group = heads.num_heads[0] // heads.num_heads[1]
        return self._by_wave(
            heads, group, lambda wave, part: wave.attend_heads(layer, part, scoring)
        )

    def _by_wave(
        self, rows: R, group: int, attend: Callable[[TableAttention, R], Tensor]
    ) -> Tensor:
        """Attend from the rows of each wave after those of the one before."""
        parts = rows.split([wave.num_rows for wave in self._waves])
        outputs = [
            attend(wave.attention(group), part)
            for wave, part in zip(self._waves, parts, strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class TableAttention(Attention):
    """The `Attention` of the rows of a table, in layers with plain scoring."""

    def __init__(self, store: PageStore, table: ColumnTable) -> None:
        self._store, self._table = store, table

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        assert scoring.is_plain, "the kernel takes a scaling and a window only"
        cache, (query, key, value) = self._store.layer(layer), rows
        if key.stride(2) != 1 or value.stride() != key.stride():
            key, value = key.contiguous(), value.contiguous()
        gpu_attention.place_heads(key[:0], key, value, None, *cache, self._table)
        return gpu_attention.attend(query, *cache, self._table, scoring.scaling, scoring.window)

    def attend_heads(self, layer: int, heads: Heads, scoring: Scoring) -> Tensor:
        assert scoring.is_plain, "the kernel takes a scaling and a window only"
        cache = self._store.layer(layer)
        rotation = gpu_attention.Rotation(heads.cos, heads.sin, *(heads.norms or (None, 0.0)))
        query = gpu_attention.place_heads(*heads.unrotated(), rotation, *cache, self._table)
        return gpu_attention.attend(query, *cache, self._table, scoring.scaling, scoring.window)


class _Wave:
    """Successive segments, none of which writes rows that an earlier one sees."""

    def __init__(
        self,
        segments: Sequence[Segment],
        store: PageStore,
        num_padding: int,
        has_wide_tiles: bool | None = None,
    ) -> None:
        """has_wide_tiles: by default in prompts, if these tiles have the bits of others."""
        self._has_wide_tiles = has_wide_tiles
        self._segments, self._store, self._num_padding = segments, store, num_padding
        self._tables: dict[int, ColumnTable] = {}  # by group
        self._attentions: dict[int, TableAttention] = {}  # by group
        self.num_rows = sum(segment.num_rows for segment in segments) + num_padding

    def attention(self, group: int) -> TableAttention:
        if group not in self._attentions:
            table = self.table(group)
            placed = table.at(to_device(table.values.numpy(), self._store.device))
            self._attentions[group] = TableAttention(self._store, placed)
        return self._attentions[group]

    def table(self, group: int) -> ColumnTable:
        """Return the table of the rows. `group`: number of query heads that share a key head."""
        if group not in self._tables:
            ends: dict[PageTable, int] = {}
            for segment in self._segments:
                ends[segment.table] = max(segment.seen_end, ends.get(segment.table, 0))
            is_wide = self._is_wide(group)
            layout = _Layout(tile_size(group, self._store.dtype, is_wide) // group, ends)
            for segment in self._segments:
                layout.add(segment)
            self._tables[group] = layout.table(self._num_padding, is_wide)
        return self._tables[group]

    def _is_wide(self, group: int) -> bool:
        if self._has_wide_tiles is not None:
            return self._has_wide_tiles
        store = self._store
        is_prompt = self.num_rows > MAX_STEP_ROWS and store.dtype != torch.float32
        size = group, store.shape.head_dim, store.dtype, store.device
        return is_prompt and do_wide_tiles_agree(*size)


@functools.cache
@torch.inference_mode()
def do_wide_tiles_agree(group: int, dim: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Try whether random rows have the same bits in the tiles of prompts as in those of steps."""
    num_rows, random = _NUM_TRIED, torch.Generator().manual_seed(0)
    new = [torch.randn(n, num_rows, dim, generator=random).to(device, dtype) for n in (group, 1, 1)]
    num_pages, positions = num_pages_of(num_rows), np.arange(num_rows)
    store = PageStore(CacheShape(1, 1, dim), num_pages, dtype, device)
    table = PageTable("trial", pages=np.arange(num_pages, dtype=np.int32))
    segment = Segment(table, 0, positions, positions, "causal", ())
    waves = [_Wave([segment], store, 0, is_wide).attention(group) for is_wide in (False, True)]
    scoring = Scoring(dim**-0.5)
    return torch.equal(*(wave.attend(0, Projections(*new), scoring) for wave in waves))


def _waves(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """Split segments before each one that writes rows of its table that an earlier one wrote."""
    ends: dict[PageTable, int] = {}
    first = 0
    for index, segment in enumerate(segments):
        if segment.start < ends.get(segment.table, 0):
            yield segments[first:index]
            first, ends = index, {}
        ends[segment.table] = segment.end
    yield segments[first:]


class _Layout:
    """Arranges the rows of segments in tiles.

    Chained rows share tiles, so that keys are read once for all of them. Rows of trees have a tile
    each. In each group of such rows that would fit into one tile, the first row's tile computes the
    columns that all rows of the group see, for the whole group.
    """

    def __init__(self, rows_per_tile: int, ends: Mapping[PageTable, int]) -> None:
        """ends: for each table of pages, the end of the rows that may be seen."""
        self._rows_per_tile = rows_per_tile
        lists = [table.pages[: num_pages_of(end)] for table, end in ends.items()]
        starts = accumulate((len(pages) for pages in lists), initial=0)
        self._page_lists = dict(zip(ends, starts, strict=False))  # where a table's pages begin
        self._pages = np.concatenate(lists)
        self._num_rows, self._num_listed = 0, 0
        self._rows: list[NDArray[np.integer]] = []
        self._tiles: list[NDArray[np.integer]] = []
        self._columns: list[NDArray[np.integer]] = [np.zeros(0, np.int64)]

    def add(self, segment: Segment) -> None:
        start, num_rows, count = segment.start, segment.num_rows, segment.num_chained
        pages = segment.table.pages
        limits = np.arange(start + 1, start + num_rows + 1)
        seen = None
        if isinstance(segment.visible, np.ndarray) and count < num_rows:
            seen = VisibleColumns.listed(count, start, segment.visible, segment.positions)
            limits[count:] = seen.base + seen.counts
        else:
            limits[count:] = segment.seen_end
            count = num_rows
        self._add_chain(limits[:count])
        if seen is not None:
            self._add_tree(limits[count:], min(start, seen.base), seen)
            self._columns.append(_cache_rows(pages, seen.columns))
            self._num_listed += len(seen.columns)
        lists = np.full(num_rows, self._page_lists[segment.table])
        written = _cache_rows(pages, np.arange(start, segment.end))
        self._rows.append(np.stack([lists, written, limits, segment.positions], axis=1))

    def _add_chain(self, limits: NDArray[np.integer]) -> None:
        """Add tiles of rows that see all columns up to their limits."""
        first = np.arange(0, len(limits), self._rows_per_tile)
        end = np.minimum(first + self._rows_per_tile, len(limits))
        self._append(first, end - first, ALL, 0, limits[end - 1], ALL)
        self._num_rows += len(limits)

    def _add_tree(self, limits: NDArray[np.integer], num_common: int, seen: VisibleColumns) -> None:
        """Add a tile for each row; all rows see the first num_common columns."""
        rows = np.arange(len(limits))
        sizes = np.minimum(self._rows_per_tile, len(limits) - rows)
        sizes[rows % self._rows_per_tile != 0] = 0
        starts = self._num_listed + seen.starts
        self._append(rows, sizes, seen.base, starts, limits, whole_splits(num_common))
        self._num_rows += len(limits)

    def _append(self, first: NDArray[np.integer], *fields: NDArray[np.integer] | int) -> None:
        columns = np.broadcast_arrays(self._num_rows + first, *fields)
        self._tiles.append(np.stack(columns, axis=1))

    def table(self, num_padding: int, is_wide: bool) -> ColumnTable:
        rows = np.concatenate([*self._rows, np.tile(PADDING, (num_padding, 1))])
        tiles, columns = np.concatenate(self._tiles), np.concatenate(self._columns)
        return ColumnTable(rows, tiles, columns, self._pages, is_wide)


def _cache_rows(pages: Pages, rows: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return where rows of a sequence are in the cache, counted over all of its pages."""
    numbers: NDArray[np.integer] = pages[rows // PAGE_SIZE] * PAGE_SIZE + rows % PAGE_SIZE
    return numbers
