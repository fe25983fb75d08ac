"""Tables of what rows see: those of steps have few shapes, those of prompts are cut."""

from __future__ import annotations

import numpy as np
import torch

from diffuspec.models.kernels.triton.table import (
    ALL,
    LONG_SPLIT,
    NUM_SHORT_SPLITS,
    SPLIT,
    ColumnTable,
    next_num_columns,
    tile_size,
    whole_splits,
)


def table(num_rows: int, start: int, num_listed: int = 0, rows_per_tile: int = 1) -> ColumnTable:
    """Return the table of rows that follow each other."""
    limits = np.arange(start + 1, start + num_rows + 1)
    rows = np.stack([np.zeros(num_rows, int), limits - 1, limits, limits - 1], axis=1)
    firsts = range(0, num_rows, rows_per_tile)
    ends = [min(first + rows_per_tile, num_rows) for first in firsts]
    tiles = [(a, b - a, ALL, 0, limits[b - 1], ALL) for a, b in zip(firsts, ends, strict=True)]
    return ColumnTable(rows, np.array(tiles), np.arange(num_listed), np.arange(start // 64))


def test_steps_of_as_many_rows_have_tables_of_one_shape() -> None:
    tables = [table(16, 0), table(16, 400, 30), table(16, SPLIT - 16, 256)]
    assert {len(one.values) for one in tables} == {16 * 4 + 16 * 6 + 16 * 16 + 16 * 2 * SPLIT // 64}
    assert {one.num_splits for one in tables} == {2}
    padding = ColumnTable.of_padding(16, SPLIT)
    assert padding.is_step and len(padding.values) == len(tables[0].values)


def test_numbers_of_splits_are_few() -> None:
    ends = (2 * SPLIT, 2 * SPLIT + 1, 8 * SPLIT, 8 * SPLIT + 1)
    assert [table(1, end - 1).num_splits for end in ends] == [2, 8, 8, 32]


def test_later_splits_are_longer() -> None:
    short = NUM_SHORT_SPLITS * SPLIT
    ends = (SPLIT - 1, SPLIT, short - 1, short, short + LONG_SPLIT - 1, short + LONG_SPLIT)
    whole = 0, SPLIT, short - SPLIT, short, short, short + LONG_SPLIT
    assert tuple(map(whole_splits, ends)) == whole
    assert next_num_columns(NUM_SHORT_SPLITS + 2) == short + 2 * LONG_SPLIT + 1


def test_a_tile_has_all_heads_of_a_group_and_one_size_for_any_number_of_rows() -> None:
    sizes = [tile_size(group, torch.bfloat16) for group in (1, 5, 64, 65)]
    assert sizes == [64, 64, 64, 128]
    assert tile_size(5, torch.float32) == 16


def test_rows_that_see_more_listed_columns_than_fit_are_no_step() -> None:
    assert not table(4, 100, 17).is_step


def test_the_rows_of_a_prompt_are_cut_into_chunks() -> None:
    prompt = table(1000, 0, rows_per_tile=3)
    assert not prompt.is_step
    ends = [chunk.rows.stop for chunk in prompt.chunks]
    assert [chunk.rows.start for chunk in prompt.chunks] == [0, *ends[:-1]] and ends[-1] == 1000
    assert all(chunk.rows.stop - chunk.rows.start <= 256 for chunk in prompt.chunks)
    assert [chunk.num_splits for chunk in prompt.chunks] == [2, 2, 8, 8]


def test_rows_whose_columns_one_tile_takes_are_in_one_chunk() -> None:
    num_rows, limit, nothing = 300, SPLIT + 1, np.zeros(0, int)
    rows = np.tile([0, 0, limit, 0], (num_rows, 1))
    tiles = [(row, 3 if row % 3 == 0 else 0, ALL, 0, limit, SPLIT) for row in range(num_rows)]
    chunks = ColumnTable(rows, np.array(tiles), nothing, nothing).chunks
    assert [chunk.rows for chunk in chunks] == [slice(0, 255), slice(255, 300)]
    assert [chunk.tiles for chunk in chunks] == [slice(0, 255), slice(255, 300)]
