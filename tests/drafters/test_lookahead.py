"""Lookahead drafts n-grams that the target completed before; small examples, worked by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from diffuspec.algorithm.draft_tree import depths, path_to
from diffuspec.core.drafter_config import LookaheadConfig
from diffuspec.core.interfaces import Observation, TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, DraftRequest, DraftTree
from diffuspec.drafters.lookahead import LookaheadDrafter
from tests.support.fakes import FakeVerifier

INFO = TargetInfo(vocab_size=100, max_model_len=64, max_sequences=2, eos_token_ids=(99,))
WINDOW = LookaheadConfig(num_columns=2, ngram_tokens=3, num_guesses=2)  # two rows of two columns


def request(
    prefix: list[int], max_nodes: int = 64, num_draft_tokens: int = 20, name: str = "a"
) -> DraftRequest:
    tokens = np.array(prefix, np.int32)
    sampling = SamplingParams()
    return DraftRequest(name, tokens, num_draft_tokens, "best_first", max_nodes, 0.5, sampling)


def answered(
    prefix: list[int], tree: DraftTree, after: Mapping[tuple[int, ...], int]
) -> Observation:
    """Return a verification in which the target says these tokens after these paths, else 0."""
    paths = [tuple(tree.token_ids[n] for n in path_to(tree, i)) for i in range(-1, tree.num_nodes)]
    tokens = [after.get(path, 0) for path in paths]
    none = np.zeros((len(paths), 0), np.int32)
    return Observation(np.array(prefix, np.int32), tree, tokens, (), none)


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    return {tuple(tree.token_ids[n] for n in path_to(tree, i)) for i in range(tree.num_nodes)}


def with_window(rows: list[list[int]]) -> LookaheadDrafter:
    drafter = LookaheadDrafter(WINDOW, INFO)
    drafter._states["a"] = drafter._state_of(request([1, 2]))
    drafter._states["a"].rows = rows
    return drafter


async def test_a_window_is_a_chain_with_the_other_rows_of_each_column_below_its_place() -> None:
    [draft] = await with_window([[10, 11], [20, 21]]).draft([request([1, 2])])
    assert paths_of(draft.tree) == {(10,), (10, 20), (10, 11), (10, 11, 21)}
    assert max(depths(draft.tree)) == 3


async def test_the_window_fills_and_then_gives_n_grams_and_moves_up() -> None:
    drafter = with_window([[10, 11]])
    [first] = await drafter.draft([request([1, 2])])
    drafter.observe([answered([1, 2], first.tree, {(10,): 20, (10, 11): 21})])
    assert drafter._states["a"].rows == [[10, 11], [20, 21]]
    [second] = await drafter.draft([request([1, 2, 3])])
    drafter.observe([answered([1, 2, 3], second.tree, {(10, 20): 30, (10, 11, 21): 31})])
    state = drafter._states["a"]
    assert state.rows == [[20, 21], [30, 31]]
    assert list(state.pool[10]) == [(20, 30)] and list(state.pool[11]) == [(21, 31)]
    [third] = await drafter.draft([request([1, 2, 3, 10])])
    assert third.tree.token_ids[:2] == (20, 30), "the n-gram that follows the last token"


async def test_equal_guesses_share_a_node() -> None:
    drafter = with_window([[10, 11], [11, 12]])
    [draft] = await drafter.draft([request([1, 2])])
    assert paths_of(draft.tree) == {(10,), (10, 11), (10, 11, 12)}
    drafter.observe([answered([1, 2], draft.tree, {(10, 11): 30, (10, 11, 12): 31})])
    assert drafter._states["a"].rows[-1] == [30, 31]


async def test_a_window_that_was_not_verified_whole_stays_as_it_is() -> None:
    drafter = with_window([[10, 11], [20, 21]])
    await drafter.draft([request([1, 2])])
    drafter.observe([answered([1, 2], DraftTree((10, 20), (-1, 0)), {(10, 20): 30})])
    drafter.observe([answered([7, 7], EMPTY_TREE, {})])  # of no request that it knows
    assert drafter._states["a"].rows == [[10, 11], [20, 21]]


async def test_the_pool_holds_the_latest_n_grams_of_the_text() -> None:
    text = [5, 1, 2, 5, 3, 4, 5, 6, 7, 5]
    [draft] = await with_window([]).draft([request(text)])
    assert paths_of(draft.tree) == {(6,), (6, 7), (3,), (3, 4)}, "two of three, the latest"
    assert draft.tree.token_ids[0] == 6 and draft.confidences[0] > draft.confidences[2]


async def test_fewer_columns_fit_few_nodes_and_short_drafts() -> None:
    drafter = LookaheadDrafter(LookaheadConfig(), INFO)
    sizes = [(64, 20), (32, 20), (64, 5), (64, 3), (7, 20)]
    for number, (nodes, length) in enumerate(sizes):
        [draft] = await drafter.draft([request([1, 2, 3], nodes, length, f"{number}")])
        assert draft.tree.num_nodes <= nodes
        rows = drafter._states[f"{number}"].rows
        assert (len(rows[0]) if rows else 0) == [7, 4, 2, 0, 0][number]


async def test_it_observes_the_target_while_requests_are_drafted_for() -> None:
    verifier = FakeVerifier(INFO)
    drafter = LookaheadDrafter(WINDOW, INFO, verifier)
    assert verifier.observers == [drafter] and not drafter.is_active
    await drafter.draft([request([1, 2], name=name) for name in "abc"])
    assert list(drafter._states) == ["b", "c"] and drafter.is_active
    for name in ("b", "c", "unknown"):
        await drafter.release(name)
    assert not drafter.is_active
    drafter.close()
    assert not verifier.observers
