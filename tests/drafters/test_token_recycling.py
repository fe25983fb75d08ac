"""Token Recycling drafts what the target found likely before; small examples, worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffuspec.algorithm.draft_tree import chain, depths
from diffuspec.core.interfaces import Observation, TargetInfo
from diffuspec.core.types import EMPTY_TREE, DraftRequest, DraftTree
from diffuspec.drafters.token_recycling import TEMPLATE, TokenRecyclingDrafter
from diffuspec.drafters.tree_template import TemplateNode
from tests.support.draft_requests import draft_request
from tests.support.fakes import FakeVerifier

EOS = 9
INFO = TargetInfo(vocab_size=1000, max_model_len=64, max_sequences=2, eos_token_ids=(EOS,))


def request(last: int, max_nodes: int = 256, name: str = "a", depth: int = 20) -> DraftRequest:
    return draft_request([5, last], depth, max_nodes, name)


def observation(
    last: int, tree: DraftTree, likely: Sequence[Sequence[int]], prefix: Sequence[int] = (5,)
) -> Observation:
    tokens = np.array([*prefix, last], np.int32)
    return Observation(tokens, tree, [0] * len(likely), (), np.array(likely, np.int32))


def numbered(token_id: int) -> list[int]:
    """Return eight tokens to follow a token, all different."""
    return [(8 * token_id + rank) % 900 + 50 for rank in range(8)]


def test_the_static_tree_has_the_shape_of_the_published_template() -> None:
    def count(node: TemplateNode, depth: int) -> None:
        for rank, child in enumerate(node.children):
            counts[depth] = counts.get(depth, 0) + 1
            count(child, depth + 1)
            ranks.append(rank)

    counts: dict[int, int] = {}
    ranks: list[int] = []
    count(TEMPLATE, 1)
    assert counts == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert max(ranks) == 7
    node = TEMPLATE
    for rank in (0, 0, 0, 1, 0):
        node = node.children[rank]
    assert len(node.children) == 1, "0 0 0 1 0 0 is the last node of the template"


async def test_a_whole_tree_is_drafted_from_the_likeliest_tokens_after_each_token() -> None:
    drafter = TokenRecyclingDrafter(INFO, FakeVerifier(INFO))
    for token_id in range(INFO.vocab_size):
        drafter.observe([observation(token_id, EMPTY_TREE, [numbered(token_id)])])
    [draft] = await drafter.draft([request(3)])
    tree = draft.tree
    assert tree.num_nodes == 80
    assert np.bincount(depths(tree)).tolist() == [0, 8, 21, 25, 15, 8, 3]
    for parent, token_id in zip(tree.parents, tree.token_ids, strict=True):
        assert token_id in numbered(3 if parent < 0 else tree.token_ids[parent])
    assert [t for p, t in zip(tree.parents, tree.token_ids, strict=True) if p < 0] == numbered(3)


async def test_the_nodes_likeliest_to_be_reached_come_first() -> None:
    drafter = TokenRecyclingDrafter(INFO, FakeVerifier(INFO))
    for token_id in range(INFO.vocab_size):
        drafter.observe([observation(token_id, EMPTY_TREE, [numbered(token_id)])])
    [draft, short] = await drafter.draft([request(3, max_nodes=5), request(3, depth=1)])
    assert draft.tree.num_nodes == 5 and max(depths(draft.tree)) > 1
    assert short.tree.num_nodes == 8 and max(depths(short.tree)) == 1


async def test_rows_of_the_tree_feed_the_matrix_accepted_or_not() -> None:
    drafter = TokenRecyclingDrafter(INFO, FakeVerifier(INFO))
    seen = observation(3, chain([4, 7]), [[4, EOS], [10, 11], [12, 13]])
    drafter.observe([seen, observation(7, EMPTY_TREE, [[20, 21]])])
    [draft] = await drafter.draft([request(3)])
    assert dict(zip(draft.tree.token_ids, draft.tree.parents, strict=True)) == {
        4: -1,
        EOS: -1,
        10: 0,
        11: 0,
    }
    [other] = await drafter.draft([request(7)])
    assert other.tree.token_ids == (20, 21), "the latest verification counts"


async def test_nothing_is_drafted_after_a_token_that_the_target_has_not_seen() -> None:
    [draft] = await TokenRecyclingDrafter(INFO, FakeVerifier(INFO)).draft([request(3)])
    assert draft.tree == EMPTY_TREE


async def test_the_target_is_observed_while_a_request_is_drafted_for() -> None:
    drafter = TokenRecyclingDrafter(INFO, FakeVerifier(INFO))
    assert not drafter.is_active
    await drafter.draft([request(3, name=name) for name in "abc"])
    assert drafter.is_active
    for name in ("b", "c", "unknown"):
        await drafter.release(name)
    assert not drafter.is_active, "of requests that are not released, two are remembered"
