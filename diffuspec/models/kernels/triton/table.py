"""The cache columns that the rows of a forward see, as a table for a GPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

SPLIT, LONG_SPLIT = 256, 1024  # columns of attention per program
NUM_SHORT_SPLITS = 8  # the first ones, which occupy all of a GPU where there are few columns
MIN_TILE = 16  # rows of the smallest matrix product
_TILE, _WIDE_TILE = 64, 128  # queries in 16 bits that are multiplied at a time; in prompts
ALL = 2**31 - 1  # all columns
MAX_STEP_ROWS = 256  # rows of the largest forward that counts as a step
PAGE_SIZE = 64  # rows of a page of the cache; see models/pages/store.py
PADDING = (0, -1, 0, 0)  # a table row that is not written and sees nothing
_MAX_ROWS = 256  # rows of a chunk, whose splits are in memory at the same time


class Chunk(NamedTuple):
    """Successive tiles, their rows, and the number of splits of the longest row."""

    tiles: slice
    rows: slice
    num_splits: int

    @property
    def num_tiles(self) -> int:
        return len(range(self.tiles.start, self.tiles.stop))

    @property
    def num_rows(self) -> int:
        return len(range(self.rows.start, self.rows.stop))


class ColumnTable:
    """The cache columns that the rows of a forward see, the same in all layers.

    Its numbers are in this process's memory until it is placed on a device. The shape of a step's
    table depends only on the numbers of padded rows and of splits.
    """

    def __init__(
        self,
        rows: NDArray[np.integer],
        tiles: NDArray[np.integer],
        columns: NDArray[np.integer],
        pages: NDArray[np.integer],
        is_wide: bool = False,
    ) -> None:
        """Describe rows, tiles and lists of columns; see the fields.

        rows [T, 4]: index in `pages` of its sequence's first page, row of the cache to write to,
        number of visible columns, position. PADDING comes last. pages: those of all sequences.
        columns: the listed ones, as rows of the cache. Rows of the cache count over all its pages.
        tiles [N, 6], ascending by rows: first row, number of rows, base, start of the tile's list
        of columns, number of columns that its last row sees, and number of columns, in whole
        splits, that it computes for all of its rows. It computes the rest only for the first row.
        is_wide: whether tiles have the size for prompts, see `tile_size`.
        """
        self.is_wide = is_wide
        self.num_rows = len(rows)
        is_short = self.num_rows <= MAX_STEP_ROWS
        num_splits = _num_splits_for(int(tiles[:, 4].max()))
        max_pages = self.num_rows * _num_columns_of(num_splits) // PAGE_SIZE
        is_small = len(columns) <= self.num_rows**2 and len(pages) <= max_pages
        self.is_step = is_short and is_small
        if self.is_step:
            every_row = slice(0, self.num_rows)
            self.chunks = [Chunk(every_row, every_row, num_splits)]
            tiles = np.pad(tiles, ((0, self.num_rows - len(tiles)), (0, 0)))
            columns = np.pad(columns, (0, self.num_rows**2 - len(columns)))
            pages = np.pad(pages, (0, max_pages - len(pages)))
        else:
            self.chunks = list(_chunks(tiles))
        values = np.concatenate([rows.ravel(), tiles.ravel(), columns, pages], dtype=np.int32)
        self._sizes = [rows.size, tiles.size, len(columns), len(pages)]
        self._place(torch.from_numpy(values))

    @classmethod
    def of_padding(cls, num_rows: int, num_columns: int) -> ColumnTable:
        """Return the table of a step without real rows, shaped as if it saw some columns."""
        rows, tiles = np.tile(PADDING, (num_rows, 1)), np.array([(0, 0, ALL, 0, num_columns, 0)])
        nothing = np.zeros(0, np.int32)
        return cls(rows, tiles, nothing, nothing)

    def at(self, values: torch.Tensor) -> ColumnTable:
        """Return the table whose numbers are, or will be, those of a tensor on a device."""
        placed = copy.copy(self)
        placed._place(values)
        return placed

    def _place(self, values: torch.Tensor) -> None:
        self.values = values
        self.rows, self.tiles, self.columns, self.pages = torch.split(values, self._sizes)

    def rows_from(self, chunk: Chunk) -> torch.Tensor:
        """Return the rows of a chunk and those after it."""
        return self.rows[4 * chunk.rows.start :]

    def tiles_from(self, chunk: Chunk) -> torch.Tensor:
        """Return the tiles of a chunk and those after it."""
        return self.tiles[6 * chunk.tiles.start :]

    @property
    def num_splits(self) -> int:
        return max(chunk.num_splits for chunk in self.chunks)


def tile_size(group: int, dtype: torch.dtype, is_wide: bool = False) -> int:
    """Return the queries of a tile, if `group` query heads share a key head.

    It is the same for any number of rows, since other tiles may add in another order. Only prompts
    have wide tiles, if these have the same bits.
    """
    least = _WIDE_TILE if is_wide else _TILE
    if dtype == torch.float32:  # registers hold few queries
        least = MIN_TILE
    return max(least, 1 << (group - 1).bit_length())


def whole_splits(num_columns: int) -> int:
    """Return how many of the first columns are in whole splits."""
    short = NUM_SHORT_SPLITS * SPLIT
    if num_columns < short:
        return num_columns // SPLIT * SPLIT
    return short + (num_columns - short) // LONG_SPLIT * LONG_SPLIT


def next_num_columns(num_splits: int) -> int:
    """Return the least number of columns that need more than num_splits splits."""
    return _num_columns_of(num_splits) + 1


def _num_columns_of(num_splits: int) -> int:
    num_long = max(num_splits - NUM_SHORT_SPLITS, 0)
    return (num_splits - num_long) * SPLIT + num_long * LONG_SPLIT


def _chunks(tiles: NDArray[np.integer]) -> Iterator[Chunk]:
    first_rows = tiles[:, 0]
    ends = np.maximum.accumulate(first_rows + np.maximum(tiles[:, 1], 1))
    begin = 0
    while begin < len(tiles):
        first = int(first_rows[begin])
        end = int(np.searchsorted(ends, first + _MAX_ROWS, side="right"))
        num_splits = _num_splits_for(int(tiles[begin:end, 4].max()))
        yield Chunk(slice(begin, end), slice(first, int(ends[end - 1])), num_splits)
        begin = end


def _num_splits_for(num_columns: int) -> int:
    """Return a number of splits: twice a power of four, so that steps have few shapes."""
    num_splits = 2
    while _num_columns_of(num_splits) < num_columns:
        num_splits *= 4
    return num_splits
