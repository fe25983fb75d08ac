"""Which forwards on a GPU are steps of one table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from diffuspec.core import pages
from diffuspec.models.attention.segment import Segment, Visible
from diffuspec.models.attention.triton import TritonAttention
from diffuspec.models.kernels.triton.table import ALL, MAX_STEP_ROWS, PAGE_SIZE, SPLIT
from diffuspec.models.pages.store import CacheShape, PageStore
from diffuspec.models.pages.table import PageTable

TABLES = [
    PageTable(str(number), pages=np.arange(number, 40, 2, dtype=np.int32)) for number in range(2)
]  # even and odd pages


def segment(number: int, start: int, num_rows: int, visible: Visible = "causal") -> Segment:
    positions = np.arange(start, start + num_rows)
    return Segment(TABLES[number], start, positions, positions, visible, ())


def batch(*segments: Segment, num_padding: int = 0) -> TritonAttention:
    return TritonAttention(segments, PageStore(CacheShape(1, 2, 8), 4), num_padding)


def test_segments_of_few_rows_are_a_step() -> None:
    table = batch(segment(0, 9, 3), segment(1, 5, 2, "full"), num_padding=11).step_table(1)
    assert table is not None and table.num_rows == 16
    lists, written, limits, positions = table.rows.view(16, 4)[:5].T.tolist()
    assert (lists, table.pages[:2].tolist()) == ([0, 0, 0, 1, 1], [0, 1])
    assert written == [9, 10, 11, PAGE_SIZE + 5, PAGE_SIZE + 6]
    assert (limits, positions) == ([10, 11, 12, 7, 7], [9, 10, 11, 5, 6])
    assert (table.rows.view(16, 4)[5:, 1] == -1).all()  # padding is not written


def test_rows_in_the_middle_see_rows_after_them() -> None:
    middle = replace(segment(1, 5, 2, "full"), num_after=PAGE_SIZE)
    table = batch(middle).step_table(1)
    assert table is not None
    _, written, limits, _ = table.rows.view(2, 4).T.tolist()
    assert written == [PAGE_SIZE + 5, PAGE_SIZE + 6] and set(limits) == {7 + PAGE_SIZE}
    assert table.pages[:2].tolist() == [1, 3]


def test_a_tree_lists_the_columns_of_its_branches() -> None:
    visible = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)
    table = batch(segment(0, 7, 3, visible)).step_table(1)
    assert table is not None
    assert table.tiles.view(3, 6)[2].tolist() == [2, 0, 7, 3, 9, 0]
    assert table.columns[3:5].tolist() == [7, 9]  # seen as columns 7 and 8


def test_chained_rows_share_tiles_and_rows_of_a_tree_whole_splits() -> None:
    start = SPLIT + 9
    shape = CacheShape(1, 2, 8)
    segments = segment(0, start, 3), segment(1, start, 4, np.eye(4, dtype=np.bool_))
    table = TritonAttention(segments, PageStore(shape, 40)).step_table(group=8)
    assert table is not None
    first_rows, sizes, *_, num_shared = table.tiles.view(7, 6).T.tolist()
    assert first_rows == [0, 2, 3, 4, 5, 6, 0]  # the chain has two tiles, each row of the tree one
    assert num_shared == [ALL, ALL, *[SPLIT] * 4, 0]
    assert sizes == [2, 1, 2, 0, 2, 0, 0]  # 16 queries a tile


def test_many_rows_are_no_step() -> None:
    assert batch(segment(0, 0, MAX_STEP_ROWS)).step_table(1) is not None
    assert batch(segment(0, 0, MAX_STEP_ROWS + 1)).step_table(1) is None


def test_a_segment_that_overwrites_what_another_sees_is_no_part_of_its_step() -> None:
    assert batch(segment(0, 9, 3), segment(0, 12, 3)).step_table(1) is not None
    assert batch(segment(0, 9, 3), segment(0, 9, 3)).step_table(1) is None


def test_rows_are_written_and_listed_where_their_pages_are() -> None:
    assert pages.PAGE_SIZE == PAGE_SIZE
    visible = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)
    table = batch(segment(1, 62, 3, visible), segment(0, 70, 1)).step_table(1)
    assert table is not None
    lists, written, *_ = table.rows.view(4, 4).T.tolist()
    assert (lists, table.pages[:4].tolist()) == ([0, 0, 0, 2], [1, 3, 0, 2])
    assert written == [64 + 62, 64 + 63, 3 * 64, 2 * 64 + 6]
    assert table.columns[3:5].tolist() == [64 + 62, 3 * 64]
