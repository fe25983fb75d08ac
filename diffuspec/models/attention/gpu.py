"""Attention of all segments of a forward on a GPU, in three launches a layer.

A row's result does not depend, to the last bit, on what else is in the forward, nor on which of the
columns before it are new.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.models.attention.cache import KVCache
from diffuspec.models.attention.scoring import Scoring
from diffuspec.models.attention.seen import listed_rows, num_chained
from diffuspec.models.attention.segment import Segment
from diffuspec.models.rows.gpu.availability import is_available
from diffuspec.models.rows.gpu.table import (
    MAX_STEP_ROWS,
    NO_LIST,
    PADDING,
    RowsTable,
    rows_per_tile,
)

with contextlib.suppress(ImportError):  # a torch without Triton: see `can_attend`
    from diffuspec.models.rows.gpu import attention as gpu_attention

_FEW_ROWS = 64  # each has a tile of its own, so that more processors take part


def can_attend(like: torch.Tensor) -> bool:
    """Whether there are kernels for tensors like this."""
    return like.is_cuda and is_available()


class GpuBatch:
    """The attention of a forward's segments, in layers with plain scoring."""

    def __init__(self, segments: Sequence[Segment], cache: KVCache, num_padding: int = 0) -> None:
        """num_padding: number of rows after those of the segments; their output is zero."""
        waves = list(_waves(segments))
        paddings = [0] * (len(waves) - 1) + [num_padding]
        self._waves = [
            _Wave(wave, cache, padding) for wave, padding in zip(waves, paddings, strict=True)
        ]

    def step_table(self, group: int) -> RowsTable | None:
        """Return the table of a step, see `RowsTable`; None if this is no step.

        `group` query heads share a key head.
        """
        if len(self._waves) > 1 or self._waves[0].num_rows > MAX_STEP_ROWS:
            return None
        table = self._waves[0].table(group)
        return table if table.is_step else None

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        """See `Attention`."""
        group = len(query) // len(key)
        if len(self._waves) == 1:
            return self._waves[0].attention(group).attend(layer, query, key, value, scoring)
        sizes = [wave.num_rows for wave in self._waves]
        parts = (torch.split(x, sizes, dim=1) for x in (query, key, value))
        outputs = [
            wave.attention(group).attend(layer, *part, scoring)
            for wave, *part in zip(self._waves, *parts, strict=True)
        ]
        return torch.cat(outputs)


class TableAttention:
    """The `Attention` of the rows of a table, in layers with plain scoring."""

    def __init__(self, cache: KVCache, table: RowsTable) -> None:
        self._cache, self._table = cache, table

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        assert scoring.is_plain, "the kernel takes a scaling and a window only"
        keys, values = self._cache.all_slots(layer)
        gpu_attention.write_cache(key, value, keys, values, self._table)
        return gpu_attention.attend(
            query, keys, values, self._table, scoring.scaling, scoring.window
        )


class _Wave:
    """Successive segments, none of which writes what an earlier one sees."""

    def __init__(self, segments: Sequence[Segment], cache: KVCache, num_padding: int) -> None:
        self._segments, self._cache, self._num_padding = segments, cache, num_padding
        self._table: RowsTable | None = None
        self.num_rows = sum(segment.num_rows for segment in segments) + num_padding

    def attention(self, group: int) -> TableAttention:
        return TableAttention(self._cache, self.table(group))

    def table(self, group: int) -> RowsTable:
        """Return the table of the rows; `group` query heads share a key head."""
        if self._table is None:
            has_few_rows = self.num_rows <= _FEW_ROWS
            most = 1 if has_few_rows else rows_per_tile(group)
            self._table = _table(self._segments, self._num_padding, most, self._cache.device)
        return self._table


def _waves(segments: Sequence[Segment]) -> Iterator[Sequence[Segment]]:
    """Cut segments where one writes rows of a slot before the end of an earlier one there."""
    ends: dict[int, int] = {}
    first = 0
    for index, segment in enumerate(segments):
        if segment.start < ends.get(segment.slot, 0):
            yield segments[first:index]
            first, ends = index, {}
        ends[segment.slot] = segment.start + segment.num_rows
    yield segments[first:]


def _table(
    segments: Sequence[Segment], num_padding: int, max_per_tile: int, device: torch.device
) -> RowsTable:
    """Lay out tiles of rows that follow each other, and a tile for each row with a list."""
    rows, tiles = list[NDArray[np.integer]](), []
    lists: list[NDArray[np.integer]] = [np.zeros(0, np.int64)]
    first_row, num_listed = 0, 0
    for segment in segments:
        start, num_rows, count = segment.start, segment.num_rows, num_chained(segment)
        limits = np.arange(start + 1, start + num_rows + 1)
        seen = None
        if isinstance(segment.visible, np.ndarray) and count < num_rows:
            seen = listed_rows(segment, segment.visible, count)
            limits[count:] = seen.base + seen.counts
        else:
            limits[count:] = start + num_rows
            count = num_rows
        slots = np.full(num_rows, segment.slot)
        columns = np.arange(start, start + num_rows)
        rows.append(np.stack([slots, columns, limits, segment.positions], axis=1))
        for first in range(0, count, max_per_tile):
            last = min(first + max_per_tile, count)
            tiles.append((first_row + first, last - first, NO_LIST, 0, limits[last - 1]))
        if seen is not None:
            for row, (begin, limit) in enumerate(zip(seen.starts, limits[count:], strict=True)):
                tiles.append((first_row + count + row, 1, seen.base, num_listed + begin, limit))
            lists.append(seen.columns)
            num_listed += len(seen.columns)
        first_row += num_rows
    rows.append(np.tile(PADDING, (num_padding, 1)))
    columns = np.concatenate(lists)
    return RowsTable(np.concatenate(rows), np.array(tiles), columns, device)
