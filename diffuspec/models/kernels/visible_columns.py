"""The cache columns that each row of a segment sees, as lists.

A row of a draft tree does not see all columns before it. Its list closes the gaps: the i-th visible
column is processed at place i, as in a chain.
"""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

_MIN_CHAIN_TABLE = 1024  # size in columns
_ITEM = np.dtype(np.int32).itemsize


class VisibleColumns(NamedTuple):
    """Successive rows of a segment, and the cache columns that each row sees.

    All rows see the columns before `base`. Row r also sees counts[r] further cache columns, listed
    from columns[starts[r]] on and processed as if they were at base, base + 1 and so on. Rows that
    see similar columns are adjacent in `order`, so that less has to be read.
    """

    first_row: int  # index of the first of these rows in the segment
    num_rows: int
    start: int  # cache row of the segment's first row
    base: int
    # addresses of order, starts, counts, columns, positions
    addresses: tuple[int, int, int, int, int]
    table: NDArray[np.int32]  # the array that contains these five

    @property
    def starts(self) -> NDArray[np.int32]:
        return self._part(self.addresses[1], self.num_rows)

    @property
    def counts(self) -> NDArray[np.int32]:
        return self._part(self.addresses[2], self.num_rows)

    @property
    def columns(self) -> NDArray[np.int32]:
        return self._part(self.addresses[3], int(self.counts.sum()))

    def _part(self, address: int, size: int) -> NDArray[np.int32]:
        begin = (address - _address(self.table)) // _ITEM
        return self.table[begin : begin + size]

    @classmethod
    def chain(cls, first_row: int, num_rows: int, start: int) -> Self:
        """Return rows that see themselves and all rows before them."""
        base = start + first_row
        size = max(_MIN_CHAIN_TABLE, 1 << (base + num_rows).bit_length())
        table, integers = _chain_table(size)
        zeros, columns = integers + size * _ITEM, integers + base * _ITEM
        counts = integers + _ITEM  # the integers from 1 on
        addresses = integers, zeros, counts, columns, columns
        return cls(first_row, num_rows, start, base, addresses, table)

    @classmethod
    def partly_causal(
        cls, first_row: int, num_rows: int, start: int, num_full: int, num_after: int = 0
    ) -> Self:
        """Return a chain whose last num_full rows see all of these rows, and num_after later ones.

        The later rows are in the cache.
        """
        counts = np.arange(1, num_rows + 1)
        counts[num_rows - num_full :] = num_rows + num_after
        base = start + first_row
        columns = np.arange(base, base + num_rows + num_after)
        order, starts, positions = np.arange(num_rows), np.zeros_like(counts), columns[:num_rows]
        return cls._of(first_row, start, base, (order, starts, counts, columns, positions))

    @classmethod
    def listed(
        cls,
        first_row: int,
        start: int,
        visible: NDArray[np.bool_],
        positions: NDArray[np.integer],
    ) -> Self:
        """Return the rows of a segment from first_row on, which all see every row before first_row.

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
        cls, first_row: int, start: int, base: int, arrays: tuple[NDArray[np.integer], ...]
    ) -> Self:
        table = np.concatenate(arrays, dtype=np.int32)
        sizes = (_ITEM * len(array) for array in arrays[:-1])
        order, starts, counts, columns, positions = accumulate(sizes, initial=_address(table))
        addresses = order, starts, counts, columns, positions
        return cls(first_row, len(arrays[0]), start, base, addresses, table)


@cache
def _chain_table(size: int) -> tuple[NDArray[np.int32], int]:
    """Return the integers below `size`, then as many zeros, and the address of the array.

    Slices of it serve as the lists of all chains.
    """
    table = np.concatenate([np.arange(size, dtype=np.int32), np.zeros(size, np.int32)])
    return table, _address(table)


def _address(table: NDArray[np.int32]) -> int:
    address: int = table.__array_interface__["data"][0]
    return address
