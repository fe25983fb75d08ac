"""The cache columns that each row of a segment sees, as lists.

A row of a draft tree does not see all columns before it. Its list closes the gaps: the i-th column
that it sees is computed at place i, as in a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

_MIN_CHAIN_TABLE = 1024  # columns


class VisibleColumns(NamedTuple):
    """Successive rows of a segment, and the cache columns that each of them sees.

    All see the columns before `base`. Row r also sees counts[r] further cache columns, listed from
    columns[starts[r]] on and computed as if they were at base, base + 1 and so on.
    """

    first_row: int  # index of the first of these rows in the segment
    start: int  # cache row of the segment's first row
    base: int
    order: NDArray[np.int32]  # rows that see similar columns next to each other, to save reading
    starts: NDArray[np.int32]
    counts: NDArray[np.int32]
    columns: NDArray[np.int32]
    positions: NDArray[np.int32]
    addresses: tuple[int, int, int, int, int]  # addresses of these five arrays

    @property
    def num_rows(self) -> int:
        return len(self.order)

    @classmethod
    def chain(cls, first_row: int, num_rows: int, start: int) -> Self:
        """Return rows that see themselves and all rows before them."""
        base = start + first_row
        size = max(_MIN_CHAIN_TABLE, 1 << (base + num_rows).bit_length())
        begins = 0, size, 1, base, base  # the counts are the integers from 1 on
        bounds = [(begin, begin + num_rows) for begin in begins]
        return cls._in_table(first_row, start, base, _chain_table(size), bounds)

    @classmethod
    def partly_causal(cls, first_row: int, num_rows: int, start: int, num_full: int) -> Self:
        """Return a chain whose last num_full rows see all of these rows."""
        counts = np.arange(1, num_rows + 1)
        counts[num_rows - num_full :] = num_rows
        base = start + first_row
        columns = np.arange(base, base + num_rows)
        order, starts = np.arange(num_rows), np.zeros_like(counts)
        return cls._of(first_row, start, base, (order, starts, counts, columns, columns))

    @classmethod
    def listed(
        cls,
        first_row: int,
        start: int,
        visible: NDArray[np.bool_],
        positions: NDArray[np.integer],
    ) -> Self:
        """Return the rows of a segment from first_row on, all of which see every row before it.

        `visible` and `positions` are those of the whole segment.
        """
        num_rows, num_columns = visible.shape
        seen = visible[first_row:, first_row:]
        base = start + num_rows - num_columns + first_row
        counts = seen.sum(axis=1)
        columns = np.nonzero(seen)[1]
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        lists = np.split(columns, starts[1:])
        order = np.array(sorted(range(len(lists)), key=lambda row: lists[row].tolist()))
        arrays = order, starts, counts, columns + base, positions[first_row:]
        return cls._of(first_row, start, base, arrays)

    @classmethod
    def _of(
        cls, first_row: int, start: int, base: int, arrays: Sequence[NDArray[np.integer]]
    ) -> Self:
        table = np.concatenate(arrays, dtype=np.int32)
        ends = accumulate((len(array) for array in arrays), initial=0)
        return cls._in_table(first_row, start, base, table, list(pairwise(ends)))

    @classmethod
    def _in_table(
        cls,
        first_row: int,
        start: int,
        base: int,
        table: NDArray[np.int32],
        bounds: Sequence[tuple[int, int]],
    ) -> Self:
        """Return rows whose five arrays are the parts of a table within these bounds."""
        order, starts, counts, columns, positions = (table[begin:end] for begin, end in bounds)
        address, size = table.__array_interface__["data"][0], table.itemsize
        addresses: Any = tuple(address + size * begin for begin, _ in bounds)
        return cls(first_row, start, base, order, starts, counts, columns, positions, addresses)


@cache
def _chain_table(size: int) -> NDArray[np.int32]:
    """Return the integers below `size`, then as many zeros: parts of it are the lists of chains."""
    return np.concatenate([np.arange(size, dtype=np.int32), np.zeros(size, np.int32)])
