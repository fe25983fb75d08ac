"""Attention over listed columns: right, and the same to the last bit whatever else is computed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from diffuspec.algorithm.draft_tree import ancestor_mask
from diffuspec.models.attention import cpu as rows_module
from diffuspec.models.attention.cpu import CpuAttention
from diffuspec.models.attention.interface import Projections, Scoring
from diffuspec.models.attention.segment import Segment, Visible
from diffuspec.models.attention.torch import TorchAttention
from diffuspec.models.attention.triton import TritonAttention
from diffuspec.models.kernels import operations
from diffuspec.models.kernels.products import has_tiles
from diffuspec.models.pages.store import CacheShape, PageStore
from diffuspec.models.pages.table import PageTable
from tests.support.gpu import DEVICES

MAX_LEN = 640
TABLE = PageTable("rows", pages=np.array([7, 2, 9, 0, 4, 1, 8, 3, 6, 5], np.int32))
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


class Rows:
    """Random queries, keys and values of MAX_LEN rows, and a cache with some of them."""

    def __init__(
        self, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        random = torch.Generator().manual_seed(0)
        self.query, self.key, self.value = (
            torch.randn(n, MAX_LEN, dim, generator=random).to(device, dtype)
            for n in (heads, kv_heads, kv_heads)
        )
        self.shape = CacheShape(1, kv_heads, dim)

    def cache(self, num_filled: int) -> PageStore:
        cache = PageStore(self.shape, len(TABLE.pages), self.key.dtype, self.key.device)
        cache.write(TABLE.pages, 0, [rows[:, :num_filled] for rows in (self.key, self.value)])
        return cache

    def attend(
        self,
        cache: PageStore,
        segment: Segment,
        rows: slice | list[int],
        window: int | None = None,
    ) -> torch.Tensor:
        part = (
            TritonAttention([segment], cache) if self.key.is_cuda else CpuAttention(segment, cache)
        )
        new = Projections(self.query[:, rows], self.key[:, rows], self.value[:, rows])
        return part.attend(0, new, Scoring(0.3, window))

    def expected(self, rows: slice, seen: NDArray[np.bool_]) -> torch.Tensor:
        """Return the attention of rows over the columns that they see, [rows, columns]."""
        copies = len(self.query) // len(self.key)
        columns = slice(seen.shape[1])
        key, value = (
            x[:, columns].double().repeat_interleave(copies, 0) for x in (self.key, self.value)
        )
        scores = self.query[:, rows].double() @ key.transpose(1, 2) * 0.3
        scores.masked_fill_(~torch.from_numpy(seen).to(scores.device), -torch.inf)
        return (scores.softmax(-1) @ value).transpose(0, 1)


def random_tree(num_chained: int, num_rows: int) -> list[int]:
    """Return parents: a chain, then rows at random places below its end."""
    random = np.random.default_rng(0)
    parents = [*range(-1, num_chained - 1)]
    parents += [int(random.integers(num_chained - 1, row)) for row in range(num_chained, num_rows)]
    return parents


CASES: dict[str, tuple[int, int, Visible, int | None]] = {  # start, rows, visible, window
    "first row": (0, 1, "causal", None),
    "one row": (300, 1, "causal", None),
    "long chain": (63, 200, "causal", None),
    "chain with a window": (100, 70, "causal", 40),
    "block": (64, 9, "full", None),
    "chain and block": (130, 12, 5, None),
    "long chain and block": (130, 190, 180, None),
    "tree": (190, 20, ancestor_mask(random_tree(1, 20)), None),
    "tree with a window": (190, 20, ancestor_mask(random_tree(1, 20)), 60),
    "prompt and tree": (37, 200, ancestor_mask(random_tree(180, 200)), None),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "dtype"),
    [
        (9, 3, 64, torch.bfloat16),
        (4, 4, 8, torch.float32),
        (5, 1, 96, torch.float32),
        (4, 2, 24, torch.float16),
    ],
)
def test_a_row_sees_its_columns_and_no_others(
    case: str, heads: int, kv_heads: int, dim: int, dtype: torch.dtype, device: str
) -> None:
    start, num_rows, visible, window = CASES[case]
    rows, new = Rows(heads, kv_heads, dim, dtype, device), slice(start, start + num_rows)
    if isinstance(visible, np.ndarray):
        among = visible
    else:
        among = np.tri(num_rows, dtype=np.bool_)
        among[num_rows if visible == "causal" else 0 if visible == "full" else visible :] = True
    positions = np.arange(start, start + num_rows)
    if isinstance(visible, np.ndarray):
        positions = start + among.sum(axis=1) - 1
    seen = np.concatenate([np.ones((num_rows, start), np.bool_), among], axis=1)
    if window is not None:
        seen &= positions[:, None] - np.concatenate([np.arange(start), positions]) < window
    segment = Segment(TABLE, start, positions, positions, visible, ())
    found = rows.attend(rows.cache(start), segment, new, window)
    assert (found - rows.expected(new, seen)).abs().max() < TOLERANCES[dtype]


@pytest.mark.parametrize("device", DEVICES)
def test_rows_before_a_segment_can_be_hidden(device: str) -> None:
    rows, positions = Rows(4, 2, 16, torch.float32, device), np.arange(100, 104)
    hidden = np.random.default_rng(0).random((4, 34)) < 0.5
    hidden[:, 0] = True
    seen = np.concatenate([np.ones((4, 70), np.bool_), hidden], axis=1)
    segment = Segment(TABLE, 100, positions, positions, hidden, ())
    found = rows.attend(rows.cache(100), segment, slice(100, 104))
    assert (found - rows.expected(slice(100, 104), seen)).abs().max() < TOLERANCES[torch.float32]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [None, 60])
@pytest.mark.parametrize("start", [0, 100])
def test_rows_in_the_middle_see_the_cached_rows_after_them(
    start: int, window: int | None, device: str
) -> None:
    rows, end = Rows(4, 2, 16, torch.float32, device), start + 20
    cache, positions = rows.cache(330), np.arange(start, end)
    for layer in cache.layer(0):  # to be overwritten
        layer[TABLE.pages[start // 64], :, start % 64 : start % 64 + 20] = torch.nan
    segment = Segment(TABLE, start, positions, positions, "full", (), num_after=330 - end)
    found = rows.attend(cache, segment, slice(start, end), window)
    seen = np.ones((20, 330), np.bool_)
    if window is not None:
        seen &= positions[:, None] - np.arange(330) < window
    expected = rows.expected(slice(start, end), seen)
    assert (found - expected).abs().max() < TOLERANCES[torch.float32]
    if device == "cpu":  # models without a kernel
        new = Projections(*(x[:, start:end] for x in (rows.query, rows.key, rows.value)))
        by_torch = TorchAttention(segment, rows.cache(330)).attend(0, new, Scoring(0.3, window))
        assert (by_torch - expected).abs().max() < TOLERANCES[torch.float32]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_heads", [2, 6])
@pytest.mark.parametrize("window", [None, 100, 300])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_row_is_attended_as_if_it_were_alone(
    num_heads: int, window: int | None, dtype: torch.dtype, device: str
) -> None:
    rows = Rows(num_heads, 2, 16, dtype, device)

    def attend(cache: PageStore, start: int, end: int) -> torch.Tensor:
        positions = np.arange(start, end)
        segment = Segment(TABLE, start, positions, positions, "causal", ())
        return rows.attend(cache, segment, slice(start, end), window)

    at_once, cache = attend(rows.cache(0), 0, MAX_LEN), rows.cache(100)
    for start, end in [(100, 101), (101, 118), (118, 200), (200, 201), (201, MAX_LEN)]:
        assert torch.equal(attend(cache, start, end), at_once[start:end])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_row_has_the_same_bits_wherever_its_pages_are(dtype: torch.dtype, device: str) -> None:
    rows, positions = Rows(4, 2, 32, dtype, device), np.arange(200, MAX_LEN)
    new, moved = slice(200, MAX_LEN), PageTable("moved", pages=TABLE.pages[::-1].copy())
    segment = Segment(TABLE, 200, positions, positions, "causal", ())
    here = rows.attend(rows.cache(200), segment, new)
    cache = PageStore(rows.shape, len(moved.pages), dtype, rows.key.device)
    cache.write(moved.pages, 0, [old[:, :200] for old in (rows.key, rows.value)])
    there = rows.attend(cache, replace(segment, table=moved), new)
    assert torch.equal(here, there)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start", [0, 5, 60, 64, 250, 600])
def test_a_branch_of_a_tree_is_attended_like_a_chain(start: int, device: str) -> None:
    rows, parents = Rows(6, 2, 16, torch.bfloat16, device), random_tree(1, 30)
    visible = ancestor_mask(parents)
    positions = start + visible.sum(axis=1) - 1
    tree = Segment(TABLE, start, positions, positions, visible, ())
    in_tree = rows.attend(rows.cache(start), tree, slice(start, start + 30))
    for row in (1, 7, 18, 29):
        branch = np.flatnonzero(visible[row])
        positions = np.arange(start, start + len(branch))
        chain = Segment(TABLE, start, positions, positions, "causal", ())
        alone = rows.attend(rows.cache(start), chain, (start + branch).tolist())
        assert torch.equal(in_tree[branch], alone)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layer", [0, 1], ids=["key", "value"])
def test_a_row_that_sees_nan_is_nan(layer: int, device: str) -> None:
    rows, positions = Rows(4, 2, 16, torch.float32, device), np.arange(100, 103)
    cache = rows.cache(100)
    cache.layer(0)[layer][TABLE.pages[0], :, 50] = torch.nan
    found = rows.attend(
        cache, Segment(TABLE, 100, positions, positions, "causal", ()), slice(100, 103)
    )
    assert found.isnan().flatten(1).any(dim=1).all()


def test_threads_change_nothing() -> None:
    rows, positions = Rows(6, 3, 16, torch.float32), np.arange(MAX_LEN)
    segment = Segment(TABLE, 0, positions, positions, "causal", ())
    alone, before = rows.attend(rows.cache(0), segment, slice(MAX_LEN)), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(rows.attend(rows.cache(0), segment, slice(MAX_LEN)), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not operations.is_available, reason="there was no compiler")
@pytest.mark.parametrize("difference", [0.0, 1e-6])
def test_a_kernel_whose_rows_depend_on_each_other_is_not_used(
    difference: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attend = operations.attend

    def attend_otherwise(*args: Any) -> None:
        attend(*args)
        output, rows = args[6], args[7]
        output += difference * (rows.num_rows > 1)

    monkeypatch.setattr(operations, "attend", attend_otherwise)
    rows_module._are_rows_independent.cache_clear()
    try:
        assert rows_module.can_attend(torch.zeros(1)) == (difference == 0.0)
    finally:
        rows_module._are_rows_independent.cache_clear()
    assert ("computed by torch" in caplog.text) == (difference > 0.0)


def test_rows_do_not_see_nan_of_rows_after_them_in_a_chain() -> None:
    rows = Rows(heads=2, kv_heads=1, dim=32, dtype=torch.float32)
    chain = Segment(TABLE, 70, np.arange(70, 76), np.arange(70, 76), "causal", ())
    expected = rows.attend(rows.cache(70), chain, slice(70, 76))
    rows.value[:, 75] = torch.nan
    found = rows.attend(rows.cache(70), chain, slice(70, 76))
    assert torch.equal(found[:5], expected[:5])
    assert found[5].isnan().all()


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 6, 32), (4, 2, 40), (3, 1, 16)])
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("start", [0, 64, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@torch.inference_mode()
def test_transposed_keys_give_the_same_bits(
    heads: int, kv_heads: int, dim: int, window: int | None, start: int, dtype: torch.dtype
) -> None:
    if dtype == torch.bfloat16 and has_tiles():
        pytest.skip("rows that are not transposed go through tiles here")
    rows = Rows(heads, kv_heads, dim, dtype)
    tree = ancestor_mask(random_tree(4, 80))
    plain = rows.cache(start)
    transposed = PageStore(rows.shape, len(TABLE.pages), dtype, transposes_keys=True)
    transposed.write(TABLE.pages, 0, [rows.key[:, :start], rows.value[:, :start]])
    for visible in ("causal", "full", 5, tree):
        positions = np.arange(start, start + len(tree))
        if visible is tree:
            positions = start + tree.sum(axis=1) - 1
        segment = Segment(TABLE, start, np.zeros(len(tree), np.int32), positions, visible, ())
        found = [
            rows.attend(cache, segment, slice(start, start + len(tree)), window)
            for cache in (plain, transposed)
        ]
        assert torch.equal(*found)
        end = start + len(tree)
        assert torch.equal(plain.rows(TABLE.pages, end), transposed.rows(TABLE.pages, end))
