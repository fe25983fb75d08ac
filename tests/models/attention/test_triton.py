"""Which forwards on a GPU are steps of one table."""

from __future__ import annotations

import numpy as np

from diffuspec.models.attention.cache import CacheShape, KVCache
from diffuspec.models.attention.segment import Segment, Visible
from diffuspec.models.attention.triton import TritonAttention
from diffuspec.models.kernels.triton.table import MAX_STEP_ROWS, SPLIT


def segment(slot: int, start: int, num_rows: int, visible: Visible = "causal") -> Segment:
    positions = np.arange(start, start + num_rows)
    return Segment(slot, start, positions, positions, visible, ())


def batch(*segments: Segment, num_padding: int = 0) -> TritonAttention:
    return TritonAttention(segments, KVCache(CacheShape(1, 2, 8), 2, 128), num_padding)


def test_segments_of_few_rows_are_a_step() -> None:
    table = batch(segment(0, 9, 3), segment(1, 5, 2, "full"), num_padding=11).step_table(1)
    assert table is not None and table.num_rows == 16
    slots, columns, limits, positions = table.rows.view(16, 4)[:5].T.tolist()
    assert (slots, columns) == ([0, 0, 0, 1, 1], [9, 10, 11, 5, 6])
    assert (limits, positions) == ([10, 11, 12, 7, 7], [9, 10, 11, 5, 6])
    assert (table.rows.view(16, 4)[5:, 1] == -1).all()  # padding is not written


def test_a_tree_lists_the_columns_of_its_branches() -> None:
    visible = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], np.bool_)
    table = batch(segment(0, 7, 3, visible)).step_table(1)
    assert table is not None
    assert table.tiles.view(3, 6)[2].tolist() == [2, 0, 7, 3, 9, 0]
    assert table.columns[3:5].tolist() == [7, 9]  # seen as columns 7 and 8


def test_rows_of_a_step_share_whole_splits_of_what_all_of_them_see() -> None:
    start = SPLIT + 9
    shape = CacheShape(1, 2, 8)
    segments = segment(0, start, 3), segment(1, start, 4, np.eye(4, dtype=np.bool_))
    table = TritonAttention(segments, KVCache(shape, 2, 2 * SPLIT)).step_table(group=8)
    assert table is not None
    first_rows, sizes, *_, num_shared = table.tiles.view(7, 6).T.tolist()
    assert first_rows == [*range(7)] and set(num_shared) == {SPLIT}
    assert sizes == [2, 0, 1, 2, 0, 2, 0]  # 16 queries a tile


def test_many_rows_are_no_step() -> None:
    assert batch(segment(0, 0, MAX_STEP_ROWS)).step_table(1) is not None
    assert batch(segment(0, 0, MAX_STEP_ROWS + 1)).step_table(1) is None


def test_a_segment_that_overwrites_what_another_sees_is_no_part_of_its_step() -> None:
    assert batch(segment(0, 9, 3), segment(0, 12, 3)).step_table(1) is not None
    assert batch(segment(0, 9, 3), segment(0, 9, 3)).step_table(1) is None
