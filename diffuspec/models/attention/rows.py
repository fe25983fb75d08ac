"""Attention of one segment on a CPU, over the columns that each row sees and no others.

The branches of a draft tree take turns at the columns behind those that all rows see: what a row
sees stands where it would in a chain. Its result does not depend, to the last bit, on what else is
in the segment, nor on which of the columns before it are new.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.models.attention.cache import KVCache
from diffuspec.models.attention.scoring import Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.rows import operations

_MAX_ROWS = 64  # of a chain at a time


def can_attend(like: torch.Tensor) -> bool:
    """Whether there is a kernel for tensors like this."""
    return operations.is_available and like.is_cpu and like.dtype in operations.TYPES


class RowsPart:
    """The attention of one segment, by the kernel that was compiled on installation."""

    def __init__(self, segment: Segment, cache: KVCache) -> None:
        self.num_rows = segment.num_rows
        self.layers = cache.layers(segment.slot)
        self._segment = segment

    @cached_property
    def pieces(self) -> list[operations.AttentionRows]:
        return list(_pieces(self._segment))

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scoring: Scoring,
    ) -> torch.Tensor:
        assert scoring.is_plain, "the kernel takes a scaling and a window only"
        keys, values = self.layers[2 * layer], self.layers[2 * layer + 1]
        output = query.new_empty(self.num_rows, query.shape[0], query.shape[2])
        for piece in self.pieces:
            operations.attend(
                query, key, value, keys, values, output, piece, scoring.scaling, scoring.window
            )
        return output


def _pieces(segment: Segment) -> Iterator[operations.AttentionRows]:
    """Cut a segment: chains of _MAX_ROWS rows first, what is left of it last."""
    if isinstance(segment.visible, np.ndarray):
        num_chained = _num_chained(segment.visible)
    else:
        num_chained = segment.num_causal
    num_left = segment.num_rows - num_chained
    first = 0
    while num_chained - first > (_MAX_ROWS if num_left == 0 else 2 * _MAX_ROWS):
        yield _chain(segment, first, first + _MAX_ROWS)
        first += _MAX_ROWS
    if isinstance(segment.visible, np.ndarray) and num_left:
        yield _listed(segment, segment.visible, first)
    else:
        yield _chain(segment, first, segment.num_rows, num_left)


def _chain(segment: Segment, first: int, end: int, num_full: int = 0) -> operations.AttentionRows:
    """Return rows that follow each other, of which the last num_full see all of them."""
    counts = np.arange(1, end - first + 1)
    counts[len(counts) - num_full :] = len(counts)
    base = segment.start + first
    columns = np.arange(base, segment.start + end)
    return operations.AttentionRows(
        first,
        segment.start,
        base,
        np.arange(end - first),
        np.zeros_like(counts),
        counts,
        columns,
        columns,
    )


def _listed(segment: Segment, visible: NDArray[np.bool_], first: int) -> operations.AttentionRows:
    """Return the rows from `first` on, which see all rows before that one."""
    num_rows, num_columns = visible.shape
    seen = visible[first:, first:]
    base = segment.start + num_rows - num_columns + first
    counts = seen.sum(axis=1)
    columns = np.nonzero(seen)[1]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lists = np.split(columns, starts[1:])
    order = sorted(range(len(lists)), key=lambda row: lists[row].tolist())
    return operations.AttentionRows(
        first,
        segment.start,
        base,
        np.array(order),
        starts,
        counts,
        columns + base,
        segment.positions[first:],
    )


def _num_chained(visible: NDArray[np.bool_]) -> int:
    """Return the number of leading rows that see themselves and all rows before, if all do."""
    num_rows, num_columns = visible.shape
    if num_rows != num_columns:
        return 0
    is_chained = (visible == np.tri(num_rows, dtype=np.bool_)).all(axis=1)
    num_chained = num_rows if is_chained.all() else int(is_chained.argmin())
    return num_chained if visible[num_chained:, :num_chained].all() else 0
