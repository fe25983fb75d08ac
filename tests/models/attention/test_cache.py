"""The cache: what it re-uses, rolls back, moves and refuses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from diffuspec.core.errors import WorkerError
from diffuspec.core.types import TokenIds
from diffuspec.models.attention.cache import CacheShape, KVCache

MAX_LEN = 16


def make_cache(num_slots: int = 2) -> KVCache:
    cache = KVCache(CacheShape(num_layers=2, num_kv_heads=1, head_dim=2), num_slots, MAX_LEN)
    cache.begin_step()
    return cache


def tokens(*token_ids: int) -> TokenIds:
    return np.array(token_ids, np.int32)


def write(cache: KVCache, slot: int, start: int, token_ids: Sequence[int]) -> None:
    """Fill rows with their token's id, so that it shows where they go."""
    rows = torch.tensor(token_ids)[None, :, None].expand(1, -1, 2)
    cache.write(slot, start, [rows] * 4)


def feed(
    cache: KVCache, request_id: str, prefix: TokenIds, salt: str | None = None
) -> tuple[int, int]:
    slot, cached = cache.acquire(request_id, prefix, salt=salt)
    write(cache, slot, cached, prefix[cached:].tolist())
    cache.commit(slot, prefix[cached:], len(prefix) - cached)
    return slot, cached


def content(cache: KVCache, slot: int, length: int) -> list[int]:
    rows = cache.rows(slot, length)
    assert all(torch.equal(layer, rows[0]) for layer in rows)
    return rows[0, 0, :, 0].int().tolist()


def test_last_prefix_token_is_left_uncached() -> None:
    cache = make_cache()
    assert feed(cache, "a", tokens(1, 2, 3)) == (0, 0)
    assert cache.acquire("a", tokens(1, 2, 3)) == (0, 2)
    assert cache.acquire("a", tokens(1)) == (0, 0)


def test_own_slot_is_cut_to_the_common_prefix() -> None:
    cache = make_cache()
    feed(cache, "a", tokens(1, 2, 3, 4))
    assert cache.acquire("a", tokens(1, 2, 9, 4, 5)) == (0, 2)


def test_the_prefix_of_a_busy_slot_is_copied() -> None:
    cache = make_cache()
    feed(cache, "a", tokens(1, 2, 3, 4))
    slot, cached = cache.acquire("b", tokens(1, 2, 3, 7))
    assert (slot, cached) == (1, 3)
    assert content(cache, slot, 3) == [1, 2, 3]
    assert cache.acquire("a", tokens(1, 2, 3, 4, 5)) == (0, 4)


def test_a_slot_with_much_to_read_copies_rows_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffuspec.models.attention.cache.MANY_TOKENS", 2)
    cache = make_cache()
    prefix = tokens(1, 2, 3, 4, 5, 6)
    first, _ = feed(cache, "a", prefix[:1])
    feed(cache, "b", prefix[:5])
    assert cache.acquire("a", prefix) == (first, 5)
    assert cache.layers(first)[0][0, :5, 0].tolist() == [1, 2, 3, 4, 5]
    assert cache.acquire("b", tokens(1, 2, 7, 8, 9))[1] == 2


def test_rows_are_shared_only_among_requests_with_the_same_salt() -> None:
    cache, prefix = make_cache(num_slots=5), tokens(1, 2, 3, 4)
    salts = ["x", None, "y", "x", None]
    found = [feed(cache, name, prefix, salt) for name, salt in zip("abcde", salts, strict=True)]
    assert [cached for _, cached in found] == [0, 0, 0, 3, 3]
    assert all(content(cache, slot, 4) == [1, 2, 3, 4] for slot, _ in found)
    assert cache.acquire("a", prefix, salt="x") == (found[0][0], 3)


def test_a_slot_with_another_salt_is_taken_over_without_its_rows() -> None:
    cache, prefix = make_cache(num_slots=1), tokens(1, 2, 3, 4)
    for salt, cached in (("x", 0), ("y", 0), ("y", 3), (None, 0), ("x", 0)):
        assert feed(cache, "a", prefix, salt) == (0, cached)
        cache.release("a")
        cache.begin_step()


def test_free_slot_is_taken_over_where_it_is() -> None:
    cache = make_cache()
    feed(cache, "a", tokens(1, 2, 3))
    feed(cache, "b", tokens(5, 6))
    cache.release("a")
    cache.begin_step()
    assert cache.acquire("c", tokens(1, 2, 4)) == (0, 2)


def test_a_free_slot_is_not_overwritten_for_a_short_match() -> None:
    cache = make_cache()
    first, _ = feed(cache, "a", tokens(1, 2, 3, 4, 5))
    cache.release("a")
    cache.begin_step()
    slot, cached = cache.acquire("b", tokens(1, 2, 9))
    assert slot != first and cached == 2
    assert cache.tokens(first).tolist() == [1, 2, 3, 4, 5]


def test_least_recently_used_free_slot_goes_first() -> None:
    cache = make_cache(3)
    for name, first in (("a", 10), ("b", 20), ("c", 30)):
        cache.begin_step()
        feed(cache, name, tokens(first, first + 1))
    cache.release("b")
    cache.release("a")
    cache.begin_step()
    assert cache.acquire("d", tokens(1, 2))[0] == 0


def test_idle_owner_loses_its_slot_only_when_none_is_free() -> None:
    cache = make_cache(2)
    feed(cache, "a", tokens(1, 2))
    cache.begin_step()
    feed(cache, "b", tokens(3, 4))
    cache.begin_step()
    assert cache.acquire("c", tokens(5, 6))[0] == 0
    cache.begin_step()
    assert cache.acquire("a", tokens(1, 2)) == (1, 0)


def test_all_slots_of_one_step_in_use_is_an_error() -> None:
    cache = make_cache(2)
    cache.acquire("a", tokens(1))
    cache.acquire("b", tokens(2))
    with pytest.raises(WorkerError, match="all 2 cache slots are in use"):
        cache.acquire("c", tokens(3))


def test_too_long_a_prefix_is_an_error() -> None:
    with pytest.raises(WorkerError, match="17 tokens exceeds 16"):
        make_cache().acquire("a", np.arange(17, dtype=np.int32))


def test_committing_a_branch_moves_its_rows_to_the_front() -> None:
    cache = make_cache()
    slot, _ = cache.acquire("a", tokens(1, 2))
    write(cache, slot, 0, [1, 2, 10, 11, 12, 13, 14])
    cache.commit(slot, tokens(1, 2, 10, 12, 14), 2, [2, 4, 6])
    assert content(cache, slot, 5) == [1, 2, 10, 12, 14]
    assert cache.acquire("a", tokens(1, 2, 10, 12, 14, 5)) == (slot, 5)


def test_overlapping_branch_rows_survive_the_move() -> None:
    cache = make_cache()
    slot, _ = cache.acquire("a", tokens(1))
    write(cache, slot, 0, [1, 10, 11, 12, 13])
    cache.commit(slot, tokens(1, 11, 12, 13), 1, [2, 3, 4])
    assert content(cache, slot, 4) == [1, 11, 12, 13]


def test_releasing_an_unknown_request_does_nothing() -> None:
    make_cache().release("unknown")


def test_clearing_zeroes_rows_with_nans() -> None:
    cache = make_cache()
    slot, _ = feed(cache, "a", tokens(1, 2))
    cache.layers(slot)[0][:, :2] = torch.nan
    cache.clear("a")
    assert content(cache, slot, MAX_LEN) == [0] * MAX_LEN
    assert cache.acquire("b", tokens(1, 2))[1] == 0


def test_size_in_bytes() -> None:
    shape = CacheShape(num_layers=2, num_kv_heads=3, head_dim=4)
    assert shape.num_bytes(5, 7, torch.bfloat16) == 2 * 2 * 3 * 4 * 5 * 7 * 2


@pytest.mark.parametrize(("first", "moved"), [(2, [4, 7]), (60, [1, 5, 6]), (62, [3, 70])])
def test_transposed_keys_are_kept_like_others(first: int, moved: list[int]) -> None:
    """Rows are moved and copied within a block of columns, and from one to another."""
    shape = CacheShape(num_layers=2, num_kv_heads=3, head_dim=5)
    rows = torch.randn(4, 3, 150, 5, generator=torch.Generator().manual_seed(0))
    prefix, both = np.arange(150, dtype=np.int32), []
    for transposes_keys in (False, True):
        cache = KVCache(shape, 2, 150, transposes_keys=transposes_keys)
        cache.begin_step()
        slot, _ = cache.acquire("a", prefix)
        cache.write(slot, 0, list(rows[:, :, :first]))
        cache.commit(slot, prefix[:first], first)
        cache.write(slot, first, list(rows[:, :, first:]))
        token_ids = [first, *(first + row for row in moved)]
        cache.commit(slot, token_ids, 1, moved)
        other, num_cached = cache.acquire("b", np.array([*range(first), *token_ids, 0], np.int32))
        assert (other != slot, num_cached) == (True, first + len(token_ids))
        assert torch.equal(cache.rows(slot, num_cached), cache.rows(other, num_cached))
        both.append(cache.rows(other, num_cached))
    assert torch.equal(*both)
    assert torch.equal(both[0][:, :, first + 1], rows[:, :, first + moved[0]])
