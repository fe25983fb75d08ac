import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.acceptance import accept
from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.types import EMPTY_TREE, DraftTree
from tests.support.trees import merge_paths

FORKED = DraftTree((5, 6, 7, 8, 9), (-1, -1, 0, 0, 2))


def test_a_draft_that_never_agrees_gives_one_token():
    result = accept(chain([1, 2, 3]), [9, 2, 3, 4])
    assert result.accepted_nodes == () and result.token_ids == (9,)


def test_a_draft_that_always_agrees_gives_all_and_a_bonus():
    result = accept(chain([1, 2, 3]), [1, 2, 3, 4])
    assert result.accepted_nodes == (0, 1, 2) and result.token_ids == (1, 2, 3, 4)


def test_the_first_disagreement_is_the_next_token():
    result = accept(chain([1, 2, 3]), [1, 7, 3, 4])
    assert result.accepted_nodes == (0,) and result.token_ids == (1, 7)


def test_no_draft_is_plain_decoding():
    assert accept(EMPTY_TREE, [7]).token_ids == (7,)


@pytest.mark.parametrize(
    ("targets", "nodes", "token_ids"),
    [
        ([6, 0, 1, 0, 0, 0], (1,), (6, 1)),
        ([5, 8, 0, 0, 2, 0], (0, 3), (5, 8, 2)),
        ([5, 7, 0, 9, 0, 3], (0, 2, 4), (5, 7, 9, 3)),
        ([5, 9, 0, 9, 0, 3], (0,), (5, 9)),  # 9 is a grandchild, not a child
    ],
)
def test_a_tree_is_walked_down_the_branch_that_agrees(targets, nodes, token_ids):
    result = accept(FORKED, targets)
    assert result.accepted_nodes == nodes and result.token_ids == token_ids


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=8), st.randoms())
def test_the_tokens_are_those_of_one_at_a_time_decoding(paths, random):
    # A target whose token depends on all tokens before it, as a table filled on demand.
    answers: dict[tuple[int, ...], int] = {}

    def target(history):
        return answers.setdefault(tuple(history), random.randrange(3))

    tree = merge_paths(paths)
    histories: list[tuple[int, ...]] = [()]
    for parent, token_id in zip(tree.parents, tree.token_ids, strict=True):
        histories.append((*histories[parent + 1], token_id))
    result = accept(tree, [target(history) for history in histories])

    decoded: list[int] = []
    while len(decoded) < len(result.token_ids):
        decoded.append(target(decoded))
    assert list(result.token_ids) == decoded
    longest = max(n for n in range(len(decoded) + 1) if tuple(decoded[:n]) in histories)
    assert len(result.accepted_nodes) == min(longest, len(decoded) - 1)
    assert tuple(decoded) not in histories
