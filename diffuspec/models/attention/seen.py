"""What the rows of a segment see of the cache, as lists of columns.

The branches of a draft tree take turns at the columns behind those that all rows see: what a row
sees stands where it would in a chain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffuspec.models.attention.segment import Segment


class SeenRows(NamedTuple):
    """Successive rows of a segment, and the cache columns that each of them sees.

    All see the columns before `base`. Row r also sees counts[r] others, which stand for it at base,
    base + 1 and so on: the cache's rows columns[starts[r]], columns[starts[r] + 1], ...
    """

    first_row: int
    start: int  # the segment's
    base: int
    order: NDArray[np.integer]  # in which rows are best computed: those with like columns together
    starts: NDArray[np.integer]
    counts: NDArray[np.integer]
    columns: NDArray[np.integer]
    positions: NDArray[np.integer]


def chained_rows(segment: Segment, first: int, end: int, num_full: int = 0) -> SeenRows:
    """Return rows that follow each other, of which the last num_full see all of them."""
    counts = np.arange(1, end - first + 1)
    counts[len(counts) - num_full :] = len(counts)
    base = segment.start + first
    columns = np.arange(base, segment.start + end)
    order, starts = np.arange(end - first), np.zeros_like(counts)
    return SeenRows(first, segment.start, base, order, starts, counts, columns, columns)


def listed_rows(segment: Segment, visible: NDArray[np.bool_], first: int) -> SeenRows:
    """Return the rows from `first` on, which see all rows before that one."""
    num_rows, num_columns = visible.shape
    seen = visible[first:, first:]
    base = segment.start + num_rows - num_columns + first
    counts = seen.sum(axis=1)
    columns = np.nonzero(seen)[1]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lists = np.split(columns, starts[1:])
    order = np.array(sorted(range(len(lists)), key=lambda row: lists[row].tolist()))
    positions = segment.positions[first:]
    return SeenRows(first, segment.start, base, order, starts, counts, columns + base, positions)


def num_chained(segment: Segment) -> int:
    """Return the number of leading rows that see themselves and all rows before, if all do."""
    if not isinstance(segment.visible, np.ndarray):
        return segment.num_causal
    num_rows, num_columns = segment.visible.shape
    if num_rows != num_columns:
        return 0
    is_chained = (segment.visible == np.tri(num_rows, dtype=np.bool_)).all(axis=1)
    count = num_rows if is_chained.all() else int(is_chained.argmin())
    return count if segment.visible[count:, :count].all() else 0
