"""Attention of all segments of a forward on a GPU, in three kernel launches per layer.

A row's result is bitwise independent of the rest of the forward, and of which of the columns before
it are new.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.core.pages import PAGE_SIZE, num_pages_of
from diffuspec.models.attention.interface import Attention, Projections, Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.kernels.triton.availability import is_available
from diffuspec.models.kernels.triton.table import (
    ALL,
    MAX_STEP_ROWS,
    PADDING,
    ColumnTable,
    tile_size,
    whole_splits,
)
from diffuspec.models.kernels.visible_columns import VisibleColumns
from diffuspec.models.pages.store import Pages, PageStore
from diffuspec.models.pages.table import PageTable

with contextlib.suppress(ImportError):  # torch without Triton: see `can_attend`
    from diffuspec.models.kernels.triton import attention as gpu_attention


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
        """Return the table of a step, see `ColumnTable`; None if this is not a step.

        `group`: number of query heads that share a key head.
        """
        if len(self._waves) > 1 or self._waves[0].num_rows > MAX_STEP_ROWS:
            return None
        table = self._waves[0].table(group)
        return table if table.is_step else None

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        group = len(rows.query) // len(rows.key)
        if len(self._waves) == 1:
            return self._waves[0].attention(group).attend(layer, rows, scoring)
        parts = rows.split([wave.num_rows for wave in self._waves])
        outputs = [
            wave.attention(group).attend(layer, part, scoring)
            for wave, part in zip(self._waves, parts, strict=True)
        ]
        return torch.cat(outputs)


class TableAttention(Attention):
    """The `Attention` of the rows of a table, in layers with plain scoring."""

    def __init__(self, store: PageStore, table: ColumnTable) -> None:
        self._store, self._table = store, table

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        assert scoring.is_plain, "the kernel takes a scaling and a window only"
        keys, values = self._store.layer(layer)
        gpu_attention.write_cache(rows.key, rows.value, keys, values, self._table)
        return gpu_attention.attend(
            rows.query, keys, values, self._table, scoring.scaling, scoring.window
        )


class _Wave:
    """Successive segments, none of which writes rows that an earlier one sees."""

    def __init__(self, segments: Sequence[Segment], store: PageStore, num_padding: int) -> None:
        self._segments, self._store, self._num_padding = segments, store, num_padding
        self._tables: dict[int, ColumnTable] = {}  # by group
        self.num_rows = sum(segment.num_rows for segment in segments) + num_padding

    def attention(self, group: int) -> TableAttention:
        return TableAttention(self._store, self.table(group))

    def table(self, group: int) -> ColumnTable:
        """Return the table of the rows. `group`: number of query heads that share a key head."""
        if group not in self._tables:
            ends: dict[PageTable, int] = {}
            for segment in self._segments:
                ends[segment.table] = max(segment.seen_end, ends.get(segment.table, 0))
            layout = _Layout(tile_size(group, self._store.dtype) // group, ends)
            for segment in self._segments:
                layout.add(segment)
            self._tables[group] = layout.table(self._num_padding, self._store.device)
        return self._tables[group]


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

    def table(self, num_padding: int, device: torch.device) -> ColumnTable:
        rows = np.concatenate([*self._rows, np.tile(PADDING, (num_padding, 1))])
        tiles, columns = np.concatenate(self._tiles), np.concatenate(self._columns)
        return ColumnTable(rows, tiles, columns, self._pages, device)


def _cache_rows(pages: Pages, rows: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return where rows of a sequence are in the cache, counted over all of its pages."""
    numbers: NDArray[np.integer] = pages[rows // PAGE_SIZE] * PAGE_SIZE + rows % PAGE_SIZE
    return numbers
