"""Hidden states are found again by the tokens that they belong to; small tables made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from diffuspec.core.interfaces import Observation
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.core.types import EMPTY_TREE, DraftTree
from diffuspec.models.heads.features import FeatureStore


def state_of(token_ids: Sequence[int]) -> list[float]:
    """Return the state of the last of some tokens: it depends on all of them."""
    return [float(sum(token_ids)), float(len(token_ids))]


def observation(
    prefix: Sequence[int],
    num_cached: int = 0,
    tree: DraftTree = EMPTY_TREE,
    accepted: tuple[int, ...] = (),
) -> Observation:
    rows = [state_of(prefix[: end + 1]) for end in range(num_cached, len(prefix))]
    paths: list[list[int]] = []
    for parent, token_id in zip(tree.parents, tree.token_ids, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else prefix), token_id])
        rows.append(state_of(paths[-1]))
    states = torch.tensor(rows).reshape(len(rows), 2)
    none = np.zeros((1 + tree.num_nodes, 0), np.int32)
    tokens = np.array(prefix, np.int32)
    told = [0] * (1 + tree.num_nodes)
    return Observation(tokens, tree, told, accepted, none, num_cached, (states,))


def assert_known(store: FeatureStore, prefix: Sequence[int], first: int = 0) -> None:
    found = store.find(np.array(prefix, np.int32))
    assert found is not None and found.first == first
    expected = [state_of(prefix[: end + 1]) for end in range(first, len(prefix) - 1)]
    assert found.rows(0, len(found)).tolist() == expected


def is_known(store: FeatureStore, prefix: Sequence[int]) -> bool:
    return store.find(np.array(prefix, np.int32)) is not None


def test_the_states_of_a_prefix_grow_with_what_is_accepted() -> None:
    store = FeatureStore(2)
    store.add(observation([5, 6, 7]))
    assert_known(store, [5, 6, 7, 8])
    store.add(observation([5, 6, 7, 8], 3, DraftTree((1, 9, 2, 4), (-1, -1, 1, 2)), (1, 2)))
    assert_known(store, [5, 6, 7, 8, 9, 2, 3])
    assert_known(store, [5, 6, 7, 8, 9])
    assert not is_known(store, [5, 6, 7, 8, 1, 3]), "it was not accepted"
    assert not is_known(store, [5, 6, 7, 8, 9, 2, 4, 3]), "it was not accepted"
    for length in range(7, 40):
        store.add(observation([5, 6, 7, 8, 9, 2, 3, *range(7, length)], length - 1))
    assert_known(store, [5, 6, 7, 8, 9, 2, 3, *range(7, 40)])


def test_a_prefix_that_begins_like_another_has_its_states() -> None:
    store = FeatureStore(2)
    store.add(observation([5, 6, 7, 8]))
    store.add(observation([5, 6, 1], 2))
    assert_known(store, [5, 6, 1, 3])
    assert_known(store, [5, 6, 7, 8, 3])


def test_states_are_known_from_where_the_target_was_first_observed() -> None:
    store = FeatureStore(2)
    store.add(observation([5, 6, 7, 8], 2))
    assert not is_known(store, [5, 6, 7][:2]) and not is_known(store, [5, 6, 1])
    assert_known(store, [5, 6, 7, 8, 9], first=2)
    store.add(observation([5, 6, 7, 8, 9], 4))
    assert_known(store, [5, 6, 7, 8, 9, 1], first=2)
    store.add(observation([4, 6, 7, 8], 2))
    assert_known(store, [4, 6, 7, 8, 9], first=2)


def test_the_prefixes_used_last_are_kept() -> None:
    store = FeatureStore(2)
    for token_id in (1, 2):
        store.add(observation([token_id, 6]))
    assert is_known(store, [1, 6, 7])
    store.add(observation([3, 6]))
    assert [is_known(store, [token_id, 6, 7]) for token_id in (1, 2, 3)] == [True, False, True]


def test_an_observation_that_comes_twice_changes_nothing() -> None:
    store = FeatureStore(2)
    for _ in range(2):
        store.add(observation([5, 6, 7]))
        store.add(observation([5, 6, 7, 8], 3))
    assert_known(store, [5, 6, 7, 8, 9])


def test_all_but_a_few_states_are_enough_where_they_are() -> None:
    store = FeatureStore(2)
    store.extend(np.arange(6, dtype=np.int32), 0, torch.zeros(6, 2))
    prefix = np.array([0, 1, 2, 3, 4, 5, 9, 9, 9], np.int32)
    assert store.find(prefix) is None and store.find(prefix, 1) is None
    found = store.find(prefix, 2)
    assert found is not None and len(found) == 6
    assert store.num_known(prefix) == 6
    other = store.find(np.array([0, 1, 2, 7, 8], np.int32), 2)
    assert other is not None and len(other) == 3


def test_states_are_shared_only_among_requests_with_the_same_salt():
    store, salted = FeatureStore(4), replace(observation([5, 6, 7]), salt="x")
    store.add(salted)
    assert not is_known(store, [5, 6, 7, 8])
    prefix = np.array([5, 6, 7, 8], np.int32)
    assert store.find(prefix, salt="y") is None
    assert store.num_known(prefix, "x") == 3 and store.num_known(prefix) == 0
    store.add(observation([5, 6, 7]))
    assert_known(store, [5, 6, 7, 8])
    found, plain = store.find(prefix, salt="x"), store.find(prefix)
    assert found is not None and plain is not None and torch.equal(found.last, plain.last)


SHARED = [1 + n % 50 for n in range(2 * PAGE_SIZE)]


def test_a_beginning_that_prefixes_share_is_kept_once():
    store = FeatureStore(4)
    for token_id in (7, 8):
        store.add(observation([*SHARED, token_id, 9], 0))
    for token_id in (7, 8):
        assert_known(store, [*SHARED, token_id, 9, 3])
    store.add(observation([*SHARED, 6, 9], 0))
    assert [is_known(store, [*SHARED, token_id, 9, 3]) for token_id in (6, 7, 8)] == [
        True,
        False,
        True,
    ]


def test_a_long_prefix_loses_its_end_first_and_has_it_again_once_it_is_read():
    store, prefix = FeatureStore(3), [*SHARED, 7, 8, 9]
    store.add(observation(prefix))
    store.add(observation([2]))
    assert not is_known(store, [*prefix, 1])
    assert_known(store, [*SHARED, 1])
    store.add(observation(prefix, len(SHARED)))
    assert_known(store, [*prefix, 1])


def test_states_of_cached_tokens_are_filled_in_once_they_are_read():
    store, prefix = FeatureStore(9), [*SHARED, 7, 8, 9]
    store.add(observation(prefix, PAGE_SIZE + 5))
    assert_known(store, [*prefix, 1], first=PAGE_SIZE + 5)
    store.add(observation(SHARED[:PAGE_SIZE]))
    assert store.num_known(np.array(prefix, np.int32)) == PAGE_SIZE
    assert_known(store, [*prefix, 1], first=PAGE_SIZE + 5)
    store.add(observation(prefix, PAGE_SIZE - 2))
    assert_known(store, [*prefix, 1])


def test_prefixes_that_branch_anywhere_all_have_their_states():
    random, store = np.random.default_rng(0), FeatureStore(10_000)
    texts: list[list[int]] = [[1]]
    for _ in range(40):
        text = texts[int(random.integers(len(texts)))]
        num_cached = int(random.integers(len(text)))
        added = random.integers(1, 4, int(random.integers(1, 100))).tolist()
        texts.append([*text[: num_cached + 1], *added])
        store.add(observation(texts[-1], num_cached if len(texts) > 2 else 0))
    for text in texts[1:]:
        assert_known(store, [*text, 5])
