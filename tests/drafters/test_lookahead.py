"""Lookahead drafts n-grams that the target completed before; small examples, worked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Thread
from typing import Any

import numpy as np
import pytest

from diffuspec.algorithm.draft_tree import depths, path_to
from diffuspec.core.drafter_config import LookaheadConfig
from diffuspec.core.interfaces import Observation, TargetInfo
from diffuspec.core.types import EMPTY_TREE, DraftTree
from diffuspec.drafters.lookahead import LookaheadDrafter
from diffuspec.drafters.tree_builder import TreeBuilder
from tests.support.draft_requests import draft_request as request
from tests.support.fakes import FakeVerifier

INFO = TargetInfo(vocab_size=100, max_model_len=64, max_sequences=2, eos_token_ids=(99,))
WINDOW = LookaheadConfig(num_columns=2, ngram_tokens=3, num_guesses=2)  # two rows of two columns
PROMPT = [10, 11, 1]  # the first row of its window is drawn as [10, 11]


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


async def with_window(below: tuple[int, int]) -> LookaheadDrafter:
    """Return a drafter whose window has the rows [10, 11] and `below`."""
    drafter = LookaheadDrafter(WINDOW, INFO, FakeVerifier(INFO))
    [first] = await drafter.draft([request(PROMPT)])
    assert paths_of(first.tree) == {(10,), (10, 11)}
    drafter.observe([answered(PROMPT, first.tree, {(10,): below[0], (10, 11): below[1]})])
    return drafter


async def test_a_window_is_a_chain_with_the_other_rows_of_each_column_below_its_place() -> None:
    [draft] = await (await with_window((20, 21))).draft([request([*PROMPT, 3])])
    assert paths_of(draft.tree) == {(10,), (10, 20), (10, 11), (10, 11, 21)}
    assert max(depths(draft.tree)) == 3


async def test_a_full_window_gives_n_grams_and_moves_up() -> None:
    drafter, prefix = await with_window((20, 21)), [*PROMPT, 3]
    [draft] = await drafter.draft([request(prefix)])
    drafter.observe([answered(prefix, draft.tree, {(10, 20): 30, (10, 11, 21): 31})])
    window = {(20,), (20, 30), (20, 21), (20, 21, 31)}
    [draft] = await drafter.draft([request([*prefix, 4])])
    assert paths_of(draft.tree) == window
    [draft] = await drafter.draft([request([*prefix, 4, 10])])
    assert draft.tree.token_ids[:2] == (20, 30), "the n-gram that follows the last token"
    [draft] = await drafter.draft([request([*prefix, 4, 10, 11])])
    assert draft.tree.token_ids[:2] == (21, 31)


async def test_equal_guesses_share_a_node() -> None:
    drafter, prefix = await with_window((11, 12)), [*PROMPT, 3]
    [draft] = await drafter.draft([request(prefix)])
    assert paths_of(draft.tree) == {(10,), (10, 11), (10, 11, 12)}
    drafter.observe([answered(prefix, draft.tree, {(10, 11): 30, (10, 11, 12): 31})])
    [draft] = await drafter.draft([request([*prefix, 4])])
    assert paths_of(draft.tree) == {(11,), (11, 30), (11, 12), (11, 12, 31)}


async def test_a_window_that_was_not_verified_whole_stays_as_it_is() -> None:
    drafter, prefix = await with_window((20, 21)), [*PROMPT, 3]
    [draft] = await drafter.draft([request(prefix)])
    drafter.observe([answered(prefix, DraftTree((10, 20), (-1, 0)), {(10, 20): 30})])
    drafter.observe([answered([7, 7], EMPTY_TREE, {})])  # of no request that it knows
    [again] = await drafter.draft([request([*prefix, 4])])
    assert again.tree == draft.tree


async def test_the_pool_holds_the_latest_n_grams_of_the_text() -> None:
    text = [5, 1, 2, 5, 3, 4, 5, 6, 7, 5]
    [draft] = await LookaheadDrafter(WINDOW, INFO, FakeVerifier(INFO)).draft([request(text)])
    assert draft.tree.token_ids[:4] == (6, 7, 3, 4) and (1, 2) not in paths_of(draft.tree)
    assert draft.confidences[0] > draft.confidences[2]


@pytest.mark.parametrize(
    ("max_nodes", "length", "num_columns"),
    [(64, 20, 7), (32, 20, 4), (64, 5, 2), (64, 3, 0), (7, 20, 0)],
)
async def test_fewer_columns_fit_few_nodes_and_short_drafts(max_nodes, length, num_columns) -> None:
    drafter = LookaheadDrafter(LookaheadConfig(), INFO, FakeVerifier(INFO))
    [draft] = await drafter.draft([request([1, 2, 3], length, max_nodes)])
    assert draft.tree.num_nodes == num_columns


async def test_it_observes_the_target_while_requests_are_drafted_for() -> None:
    verifier = FakeVerifier(INFO)
    drafter = LookaheadDrafter(WINDOW, INFO, verifier)
    assert verifier.observers == [drafter] and not drafter.is_active
    await drafter.draft([request([1, 2], name=name) for name in "abc"])
    assert drafter.is_active
    for name in ("b", "c", "unknown"):  # the first was dropped for the third
        await drafter.release(name)
    assert not drafter.is_active
    drafter.close()
    assert not verifier.observers


async def test_n_grams_completed_in_the_verifiers_thread_wait_for_a_draft_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = await with_window((20, 21))
    [draft] = await drafter.draft([request([*PROMPT, 10, 3, 4])])
    seen = answered([*PROMPT, 10, 3, 4], draft.tree, {(10, 20): 30, (10, 11, 21): 31})
    verifier, add_chain = Thread(target=drafter.observe, args=([seen],)), TreeBuilder.add_chain

    def add_meanwhile(builder: TreeBuilder, *chain: Any) -> None:
        if verifier.ident is None:
            verifier.start()
            verifier.join(timeout=0.05)
        add_chain(builder, *chain)

    monkeypatch.setattr(TreeBuilder, "add_chain", add_meanwhile)
    [draft] = await drafter.draft([request([*PROMPT, 10, 3, 4, 10])])
    verifier.join()
    assert {(11, 1), (3, 4)} <= paths_of(draft.tree) and (20, 30) not in paths_of(draft.tree)
