"""The cache columns that each row of a segment sees, as lists.

A row of a draft tree does not see all columns before it. Its list closes the gaps: the i-th column
that it sees is computed at place i, as in a chain.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffuspec.models.attention.segment import Segment


class VisibleColumns(NamedTuple):
    """Successive rows of a segment, and the cache columns that each of them sees.

    All see the columns before `base`. Row r also sees counts[r] further cache columns, listed from
    columns[starts[r]] on and computed as if they were at base, base + 1 and so on.
    """

    first_row: int
    start: int  # cache row of the segment's first row
    base: int
    order: NDArray[np.integer]  # rows that see similar columns next to each other, to save reading
    starts: NDArray[np.integer]
    counts: NDArray[np.integer]
    columns: NDArray[np.integer]
    positions: NDArray[np.integer]


def partly_causal_columns(segment: Segment, first: int, num_full: int) -> VisibleColumns:
    """Return the rows from `first` on: a chain, then num_full rows that see all of them."""
    num_rows = segment.num_rows - first
    counts = np.arange(1, num_rows + 1)
    counts[num_rows - num_full :] = num_rows
    base = segment.start + first
    columns = np.arange(base, base + num_rows)
    order, starts = np.arange(num_rows), np.zeros_like(counts)
    return VisibleColumns(first, segment.start, base, order, starts, counts, columns, columns)


def listed_columns(segment: Segment, visible: NDArray[np.bool_], first: int) -> VisibleColumns:
    """Return the rows from `first` on; all of them see every row before `first`."""
    num_rows, num_columns = visible.shape
    seen = visible[first:, first:]
    base = segment.start + num_rows - num_columns + first
    counts = seen.sum(axis=1)
    columns = np.nonzero(seen)[1]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lists = np.split(columns, starts[1:])
    order = np.array(sorted(range(len(lists)), key=lambda row: lists[row].tolist()))
    positions = segment.positions[first:]
    return VisibleColumns(
        first, segment.start, base, order, starts, counts, columns + base, positions
    )


def num_chained(segment: Segment) -> int:
    """Return the number of leading rows that form a chain which every later row sees."""
    if not isinstance(segment.visible, np.ndarray):
        return segment.num_causal
    num_rows, num_columns = segment.visible.shape
    if num_rows != num_columns:
        return 0
    is_chained = (segment.visible == np.tri(num_rows, dtype=np.bool_)).all(axis=1)
    count = num_rows if is_chained.all() else int(is_chained.argmin())
    return count if segment.visible[count:, :count].all() else 0
