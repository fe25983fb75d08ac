"""Attention on a GPU: what torch computes, whatever rows are beside a row, in trees as in chains.

Without a GPU the kernels run in Triton's interpreter, where Triton is installed. It multiplies with
sums in an order of its own, so what shows the order of sums there are values of which each block
has one that is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from diffuspec.models.attention.interface import Heads, Projections, Scoring
from diffuspec.models.attention.segment import Segment, Visible
from diffuspec.models.attention.torch import TorchAttention
from diffuspec.models.kernels.operations import _rotate_by_torch
from diffuspec.models.pages.store import CacheShape, PageStore
from diffuspec.models.pages.table import PageTable

pytest.importorskip("triton")

from diffuspec.models.attention.triton import TritonAttention
from diffuspec.models.kernels.triton import attention as on_gpu, operations
from diffuspec.models.kernels.triton.table import NUM_SHORT_SPLITS, SPLIT, ColumnTable

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_KV_HEADS, GROUP, DIM = 1, 3, 16
NUM_PAGES = 34
DTYPE = torch.bfloat16 if torch.cuda.is_available() else torch.float32
TOLERANCE = 2e-2 if DTYPE is torch.bfloat16 else 1e-5


class Cached:
    """A cache with random rows of one sequence, in pages that are not in order."""

    def __init__(self, num_cached: int) -> None:
        torch.manual_seed(0)
        self.store = PageStore(CacheShape(1, NUM_KV_HEADS, DIM), NUM_PAGES, DTYPE, DEVICE)
        pages = np.arange(NUM_PAGES, dtype=np.int32)[::-1].copy()
        self.table, self.num_cached = PageTable("a", pages=pages), num_cached
        for part in self.store.layer(0):
            part.copy_(torch.randn(part.shape))

    def segment(self, num_rows: int, visible: Visible = "causal", start: int = 0) -> Segment:
        first = self.num_cached + start
        positions = np.arange(first, first + num_rows)
        return Segment(self.table, first, positions, positions, visible, ())

    def attend(
        self, segments: Sequence[Segment], rows: Projections, window: int | None = None
    ) -> Tensor:
        attention = TritonAttention(segments, self.store)
        return attention.attend(0, rows, Scoring(DIM**-0.5, window))


def random_rows(num_rows: int) -> Projections:
    torch.manual_seed(1)
    heads = GROUP * NUM_KV_HEADS, NUM_KV_HEADS, NUM_KV_HEADS
    return Projections(*(torch.randn(n, num_rows, DIM).to(DEVICE, DTYPE) for n in heads))


def part(rows: Projections, first: int, end: int) -> Projections:
    return Projections(*(tensor[:, first:end] for tensor in rows))


@pytest.mark.parametrize(
    ("num_cached", "num_rows", "visible", "window"),
    [
        (0, 3, "causal", None),
        (SPLIT - 3, 7, "causal", None),
        (SPLIT - 9, 17, "full", 70),
        (100, 11, 2, None),
        (100, 11, 2, 40),
        (NUM_SHORT_SPLITS * SPLIT - 2, 4, "causal", None),
    ],
)
def test_rows_attend_to_what_they_see(
    num_cached: int, num_rows: int, visible: Visible, window: int | None
) -> None:
    cached, rows = Cached(num_cached), random_rows(num_rows)
    segment = cached.segment(num_rows, visible)
    found = cached.attend([segment], rows, window)
    expected = TorchAttention(segment, cached.store).attend(0, rows, Scoring(DIM**-0.5, window))
    assert (found - expected).abs().max() < TOLERANCE


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    """The sums of a block are of one value, so that only the order of blocks and splits counts."""
    num_cached, num_rows = SPLIT - 9, 24
    cached, rows = Cached(num_cached), random_rows(num_rows)
    if DTYPE is torch.float32:
        keys, values = cached.store.layer(0)
        keys.zero_()
        values.zero_()
        values[:, :, 5] = torch.randn(NUM_PAGES, NUM_KV_HEADS, DIM) * 1e6
        rows = Projections(rows.query, rows.key * 0, rows.value * 0)
    together = cached.attend([cached.segment(num_rows)], rows)
    for first, end in ((0, 1), (1, 8), (8, 24)):
        alone = cached.attend([cached.segment(end - first, start=first)], part(rows, first, end))
        assert torch.equal(alone, together[first:end])
    halves = cached.segment(10), cached.segment(14, start=10)
    assert torch.equal(cached.attend(halves, rows), together)


def test_a_branch_of_a_tree_is_a_chain() -> None:
    cached, rows = Cached(SPLIT + 5), random_rows(5)
    parents = [-1, 0, 0, 1, 2]  # 0, 1, 3 and 0, 2, 4 are the branches
    visible = np.eye(5, dtype=np.bool_)
    for row, parent in enumerate(parents):
        if parent >= 0:
            visible[row] |= visible[parent]
    positions = cached.num_cached + np.array([0, 1, 1, 2, 2])
    tree = Segment(cached.table, cached.num_cached, positions, positions, visible, ())
    found = cached.attend([tree], rows)
    for branch in ([0, 1, 3], [0, 2, 4]):
        chain = Projections(*(tensor[:, branch] for tensor in rows))
        other = Cached(SPLIT + 5)
        expected = other.attend([other.segment(3)], chain)
        assert torch.equal(found[branch], expected)


@pytest.mark.parametrize("has_norms", [False, True])
def test_placed_heads_have_the_bits_of_norms_rotation_and_writes(has_norms: bool) -> None:
    num_rows, num_heads = 5, (GROUP, NUM_KV_HEADS, NUM_KV_HEADS)
    torch.manual_seed(0)
    rows, cos, sin, norms = (
        torch.randn(*shape).to(DEVICE, DTYPE)
        for shape in ((num_rows, sum(num_heads) * DIM), (num_rows, DIM), (num_rows, DIM), (2, DIM))
    )
    table = ColumnTable.of_padding(num_rows, 1)
    table.rows.view(num_rows, 4)[:, 1] = torch.tensor([70, 0, 63, -1, 64])
    table = table.at(table.values.to(DEVICE))
    stores = Cached(0).store, Cached(0).store
    rotation = on_gpu.Rotation(cos, sin, norms if has_norms else None, 1e-6)
    heads = Heads(rows, cos, sin, num_heads, None).unrotated()
    found = on_gpu.place_heads(*heads, rotation, *stores[0].layer(0), table)
    if has_norms:
        parts = rows.split([number * DIM for number in num_heads], dim=1)
        normed = [
            operations.normalise(part.reshape(-1, DIM).contiguous(), None, None, weight, 1e-6)
            for part, weight in zip(parts[:2], norms, strict=True)
        ]
        rows = torch.cat([one.view(num_rows, -1) for one in (*normed, parts[2])], dim=1)
    _rotate_by_torch(rows.view(num_rows, -1, DIM)[:, : GROUP + NUM_KV_HEADS], cos, sin)
    query, key, value = Heads(rows, cos, sin, num_heads, None).unrotated()
    on_gpu.place_heads(key[:0], key, value, None, *stores[1].layer(0), table)
    pairs = (found, query), *zip(stores[0].layer(0), stores[1].layer(0), strict=True)
    for mine, other in pairs:
        if torch.cuda.is_available():  # its products and sums may be rounded together
            torch.testing.assert_close(mine, other)
        else:
            assert torch.equal(mine, other)


def test_padding_changes_no_other_row() -> None:
    cached, rows = Cached(100), random_rows(16)
    segment = cached.segment(5)
    attention = TritonAttention([segment], cached.store, num_padding=11)
    padded = attention.attend(0, rows, Scoring(DIM**-0.5))
    assert torch.equal(padded[:5], cached.attend([segment], part(rows, 0, 5)))
    assert (padded[5:] == 0).all()
