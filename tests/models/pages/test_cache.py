"""The cache of pages: what is shared, copied, moved, given back, preempted and refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from diffuspec.core.types import NO_TOKENS, TokenIds
from diffuspec.models.pages.cache import KVCache
from diffuspec.models.pages.pool import OutOfPagesError
from diffuspec.models.pages.store import CacheShape
from diffuspec.models.pages.table import PageTable

SHAPE = CacheShape(num_layers=2, num_kv_heads=1, head_dim=2)
PROMPT = np.arange(1000, 1150, dtype=np.int32)  # two pages and a partial one


def make_cache(num_pages: int = 12, **settings: Any) -> KVCache:
    cache = KVCache(SHAPE, num_pages, **settings)
    cache.begin_step()
    return cache


def tokens(*parts: Sequence[int] | NDArray[np.integer]) -> TokenIds:
    return np.concatenate([np.asarray(part, np.int32) for part in parts])


def write(cache: KVCache, table: PageTable, start: int, token_ids: TokenIds) -> None:
    """Fill rows with their token's id, so that it shows where they go."""
    cache.reserve(table, start + len(token_ids))
    rows = torch.from_numpy(token_ids)[None, :, None].expand(1, -1, 2)
    cache.store.write(table.pages, start, [rows] * 4)


def feed(
    cache: KVCache, request_id: str, prefix: TokenIds, salt: str | None = None
) -> tuple[PageTable, int]:
    """Return a request's table with all rows of a prefix, and how many were cached before."""
    table = cache.acquire(request_id, prefix, salt=salt)
    cached = table.length
    write(cache, table, cached, prefix[cached:])
    cache.commit(table, prefix[cached:], len(prefix) - cached)
    assert content(cache, table) == prefix.tolist()
    return table, cached


def content(cache: KVCache, table: PageTable) -> list[int]:
    rows = cache.store.rows(table.pages, table.length)
    assert all(torch.equal(layer, rows[0]) for layer in rows)
    return rows[0, 0, :, 0].int().tolist()


def test_the_last_token_of_a_prefix_counts_as_uncached() -> None:
    cache = make_cache()
    feed(cache, "a", PROMPT[:70])
    assert cache.acquire("a", PROMPT[:70]).length == 69
    assert cache.acquire("a", PROMPT[:1]).length == 0


def test_a_table_is_cut_to_the_common_prefix() -> None:
    cache = make_cache()
    feed(cache, "a", PROMPT[:140])
    table = cache.acquire("a", tokens(PROMPT[:130], [1, 2, 3]))
    assert (table.length, len(table.pages)) == (130, 3)


def test_whole_pages_are_shared_and_a_partial_one_is_copied() -> None:
    cache = make_cache()
    one, _ = feed(cache, "a", PROMPT)
    other, cached = feed(cache, "b", tokens(PROMPT[:140], [7] * 9))
    assert cached == 140
    assert other.pages[:2].tolist() == one.pages[:2].tolist()
    assert other.pages[2] != one.pages[2]
    assert content(cache, one) == PROMPT.tolist()
    assert cache.use == (12 - 4, 2)


def test_a_page_that_is_shared_never_changes() -> None:
    cache = make_cache()
    one, _ = feed(cache, "a", PROMPT)
    other, _ = feed(cache, "b", PROMPT)
    changed = tokens(PROMPT[:100], np.arange(60))
    table, cached = feed(cache, "b", changed)
    assert (table is other, cached) == (True, 100)
    assert table.pages[0] == one.pages[0] and table.pages[1] != one.pages[1]
    assert content(cache, one) == PROMPT.tolist()


def test_answers_to_one_prompt_copy_its_partial_page_even_when_that_is_full() -> None:
    cache = make_cache()
    feed(cache, "a", tokens(PROMPT, np.arange(60)))
    _, cached = feed(cache, "b", tokens(PROMPT, [5]))
    assert cached == len(PROMPT)


def test_a_finished_request_is_continued_in_its_own_partial_page() -> None:
    cache = make_cache()
    first, _ = feed(cache, "a", PROMPT)
    pages = first.pages.tolist()
    cache.release("a")
    assert cache.use.num_free == 12
    second, cached = feed(cache, "b", tokens(PROMPT, [1, 2, 3]))
    assert (cached, second.pages.tolist()) == (len(PROMPT), pages)
    third, cached = feed(cache, "c", tokens(PROMPT, [4, 5]))
    assert cached == len(PROMPT)
    assert third.pages[2] != second.pages[2]


def test_rows_are_shared_only_by_requests_with_the_same_salt() -> None:
    cache, prefix = make_cache(num_pages=20), PROMPT[:100]
    salts = ["x", None, "y", "x", None]
    cached = [feed(cache, name, prefix, salt)[1] for name, salt in zip("abcde", salts, strict=True)]
    assert cached == [0, 0, 0, 99, 99]
    assert cache.acquire("a", prefix, salt="y").length == 99  # a request may change it


def test_prefixes_are_evicted_by_their_last_use_from_their_end() -> None:
    cache = make_cache(num_pages=6)
    for first, name in ((0, "a"), (500, "b")):
        cache.begin_step()
        feed(cache, name, np.arange(first, first + 192, dtype=np.int32))
        cache.release(name)
    cache.begin_step()
    feed(cache, "c", np.arange(2000, 2070, dtype=np.int32))
    assert cache.acquire("a2", np.arange(0, 193, dtype=np.int32)).length == 64
    assert cache.acquire("b2", np.arange(500, 693, dtype=np.int32)).length == 192


def test_the_youngest_request_outside_the_step_gives_its_pages_up_and_finds_them_again() -> None:
    cache = make_cache(num_pages=5)
    for name in "abc":
        feed(cache, name, tokens([ord(name)], PROMPT[:70]))
        if name == "b":
            cache.release("b")
    cache.begin_step()
    oldest, _ = feed(cache, "a", tokens([ord("a")], PROMPT[:149]))
    assert (len(oldest.pages), cache.num_cached("c")) == (3, 71)
    write(cache, oldest, 150, PROMPT[:140])
    assert (len(oldest.pages), cache.num_cached("c")) == (5, 0)
    cache.begin_step()
    write(cache, cache.acquire("c", PROMPT), 0, PROMPT)
    assert cache.num_cached("a") == 0
    with pytest.raises(OutOfPagesError, match="all 5 pages"):
        feed(cache, "d", PROMPT)
    cache.release("c")
    assert cache.use.num_free == 5


def test_without_preemption_no_request_loses_pages_to_another() -> None:
    cache = make_cache(num_pages=2, preempts=False)
    feed(cache, "a", PROMPT[:100])
    cache.begin_step()
    with pytest.raises(OutOfPagesError):
        feed(cache, "b", PROMPT[100:])
    assert cache.num_cached("a") == 100
    cache.release("a")
    feed(cache, "b", PROMPT[100:])


def test_a_step_without_pages_leaves_everything_as_it_was() -> None:
    cache = make_cache(num_pages=4)
    table, _ = feed(cache, "a", PROMPT)
    with pytest.raises(OutOfPagesError):
        cache.reserve(table, 5 * 64)
    assert (len(table.pages), cache.use.num_free) == (3, 1)
    assert content(cache, table) == PROMPT.tolist()


def test_committing_a_branch_moves_its_rows_and_gives_back_the_rest() -> None:
    cache = make_cache()
    table = cache.acquire("a", PROMPT)
    branch = tokens(PROMPT[:62], np.arange(80))  # nodes on both sides of a page's end
    write(cache, table, 0, branch)
    kept = [62, 64, 66, 140]
    cache.commit(table, tokens(PROMPT[:62], branch[kept]), 62, kept)
    assert content(cache, table) == tokens(PROMPT[:62], branch[kept]).tolist()
    assert (len(table.pages), cache.use.num_free) == (2, 10)


def test_overlapping_branch_rows_survive_the_move() -> None:
    cache = make_cache()
    table = cache.acquire("a", PROMPT)
    write(cache, table, 0, tokens([1, 10, 11, 12, 13]))
    cache.commit(table, tokens([1, 11, 12, 13]), 1, [2, 3, 4])
    assert content(cache, table) == [1, 11, 12, 13]


def test_private_pages_are_never_shared_and_free_when_a_request_ends() -> None:
    cache = make_cache(shares_prefixes=False)
    feed(cache, "a", PROMPT)
    assert feed(cache, "b", PROMPT)[1] == 0
    table, cached = feed(cache, "a", PROMPT)
    assert (cached, cache.use.num_shared) == (149, 0)
    cache.release("a")
    assert feed(cache, "c", PROMPT)[1] == 0
    cache.truncate(table, 0)


def test_clearing_zeroes_rows_with_nans_once_nobody_uses_them() -> None:
    cache = make_cache(num_pages=4)
    one, _ = feed(cache, "a", PROMPT[:100])
    other, _ = feed(cache, "b", PROMPT[:100])
    cache.store.layer(0)[0][one.pages.tolist()] = torch.nan
    cache.clear("a")
    assert cache.store.layer(0)[0][other.pages[0]].isnan().all()
    assert cache.acquire("c", PROMPT[:64]).length == 0
    cache.clear("b")
    assert not cache.store.layer(0)[0].isnan().any()
    assert cache.use.num_free == 4


def test_pages_that_windows_hide_are_given_back() -> None:
    cache = make_cache(num_pages=5, window=40)
    table = cache.acquire("a", NO_TOKENS)
    for first in range(0, 600, 30):
        token_ids = np.arange(first, first + 30, dtype=np.int32)
        write(cache, table, first, token_ids)
        cache.commit(table, token_ids, 30)
        seen = cache.store.rows(table.pages, table.length)[0, 0, -40:, 0]
        assert seen.int().tolist() == list(range(max(first - 10, 0), first + 30))
        assert cache.use.num_free >= 5 - 2
    assert cache.acquire("a", tokens(table.token_ids, [1])).length == 600
    assert cache.acquire("b", table.token_ids).length == 0, "no page is shared"
    cache.truncate(table, 590)
    assert (table.length, cache.use.num_free) == (590, 5 - 2)
    cache.truncate(table, 500)
    assert (table.length, cache.use.num_free) == (0, 5)


def test_ending_an_unknown_request_does_nothing() -> None:
    cache = make_cache()
    cache.release("unknown")
    cache.clear("unknown")
    assert cache.num_cached("unknown") == 0


def test_size_in_bytes() -> None:
    shape = CacheShape(num_layers=2, num_kv_heads=3, head_dim=4)
    assert shape.num_bytes(7, torch.bfloat16) == 2 * 2 * 3 * 4 * 7 * 2


@pytest.mark.parametrize(("first", "moved"), [(2, [4, 7]), (60, [1, 5, 6]), (62, [3, 70])])
def test_transposed_keys_are_kept_like_others(first: int, moved: list[int]) -> None:
    """Rows are moved and copied within a page, and from one to another."""
    shape = CacheShape(num_layers=2, num_kv_heads=3, head_dim=5)
    rows = torch.randn(4, 3, 150, 5, generator=torch.Generator().manual_seed(0))
    both = []
    for transposes_keys in (False, True):
        cache = KVCache(shape, 8, transposes_keys=transposes_keys)
        cache.begin_step()
        table = cache.acquire("a", PROMPT)
        cache.reserve(table, 150)
        cache.store.write(table.pages, 0, list(rows))
        cache.commit(table, PROMPT[:first], first)
        cache.reserve(table, 150)
        cache.store.write(table.pages, first, list(rows[:, :, first:]))
        token_ids = [first, *(first + row for row in moved)]
        cache.commit(table, token_ids, 1, moved)
        end = first + len(token_ids)
        other = cache.acquire("b", tokens(PROMPT[:first], token_ids, [0]))
        assert (other is not table, other.length) == (True, end)
        assert torch.equal(cache.store.rows(table.pages, end), cache.store.rows(other.pages, end))
        both.append(cache.store.rows(other.pages, end))
    assert torch.equal(*both)
    assert torch.equal(both[0][:, :, first + 1], rows[:, :, first + moved[0]])
