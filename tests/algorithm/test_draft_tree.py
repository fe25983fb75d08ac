import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.draft_tree import (
    ancestor_mask,
    best_path,
    chain,
    cut_draft,
    depths,
    draft_after,
    is_chain,
    path_to,
    prune,
    prune_draft,
    validate,
)
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.types import EMPTY_DRAFT, EMPTY_TREE, Draft, DraftTree
from tests.support.trees import merge_paths

paths = st.lists(st.lists(st.integers(0, 3), max_size=5).map(tuple), max_size=6)
trees = paths.map(merge_paths)

#        root
#       5    6
#     7  8
#     9
FORKED = DraftTree((5, 6, 7, 8, 9), (-1, -1, 0, 0, 2))


def test_a_chain_has_one_branch():
    tree = chain([4, 2, 2])
    assert tree == DraftTree((4, 2, 2), (-1, 0, 1))
    assert is_chain(tree) and is_chain(EMPTY_TREE) and not is_chain(FORKED)


def test_merging_shares_beginnings_and_keeps_siblings_distinct():
    tree = merge_paths([(5, 7, 9), (5, 8), (6,), (5, 7)])
    assert tree == DraftTree((5, 7, 9, 8, 6), (-1, 0, 1, 0, -1))


@settings(deadline=None)
@given(paths)
def test_merged_paths_are_a_valid_tree_that_holds_every_path(given_paths):
    tree = merge_paths(given_paths)
    validate(tree)
    nodes = range(tree.num_nodes)
    held = {tuple(tree.token_ids[i] for i in path_to(tree, node)) for node in nodes}
    assert held == {path[:n] for path in given_paths for n in range(1, len(path) + 1)}


@settings(deadline=None)
@given(trees)
def test_mask_and_depths_follow_the_paths(tree):
    mask, found = ancestor_mask(tree.parents), depths(tree)
    assert mask.shape == (tree.num_nodes, tree.num_nodes) and mask.dtype == np.bool_
    for node in range(tree.num_nodes):
        assert np.flatnonzero(mask[node]).tolist() == path_to(tree, node)
        assert found[node] == len(path_to(tree, node))


def test_views_of_a_chain_and_of_no_tree():
    assert ancestor_mask(chain([1, 1, 1]).parents).tolist() == np.tri(3, dtype=bool).tolist()
    assert depths(chain([1, 1, 1])) == (1, 2, 3)
    assert ancestor_mask(EMPTY_TREE.parents).shape == (0, 0) and depths(EMPTY_TREE) == ()
    assert path_to(FORKED, -1) == []


def test_best_path_follows_first_children():
    assert best_path(FORKED) == [0, 2, 4]
    assert best_path(EMPTY_TREE) == []


@pytest.mark.parametrize(
    ("token_ids", "parents", "message"),
    [
        ((1, 2), (-1,), "2 tokens but 1 parents"),
        ((1, -1), (-1, 0), "node 1: token id must be 0 or more, got -1"),
        ((1, 2), (-1, 1), "node 1: parent must be -1 or an earlier node, got 1"),
        ((1,), (-2,), "node 0: parent must be -1 or an earlier node, got -2"),
        ((1, 3, 3), (-1, 0, 0), "node 2: a sibling already carries token id 3"),
    ],
)
def test_validation_names_the_wrong_node(token_ids, parents, message):
    with pytest.raises(InvalidRequestError, match=message):
        validate(DraftTree(token_ids, parents))


def test_pruning_renumbers_the_nodes_kept():
    assert prune(FORKED, [4, 0, 2]) == chain([5, 7, 9])
    assert prune(FORKED, [0, 3, 1]) == DraftTree((5, 6, 8), (-1, -1, 0))
    assert prune(FORKED, []) == EMPTY_TREE


def test_pruning_refuses_orphans():
    with pytest.raises(InvalidRequestError, match="node 4 cannot be kept without its parent 2"):
        prune(FORKED, [0, 4])


@settings(deadline=None)
@given(trees, st.data())
def test_pruned_trees_are_valid_and_hold_the_same_paths(tree, data):
    wanted = data.draw(st.sets(st.sampled_from(range(tree.num_nodes)))) if tree.num_nodes else ()
    keep = sorted({ancestor for node in wanted for ancestor in path_to(tree, node)})
    pruned = prune(tree, keep)
    validate(pruned)
    for new, old in enumerate(keep):
        old_path = [tree.token_ids[node] for node in path_to(tree, old)]
        assert [pruned.token_ids[node] for node in path_to(pruned, new)] == old_path


def test_pruning_a_draft_keeps_the_fields_of_its_nodes():
    draft = Draft(
        FORKED,
        (-0.1, -0.2, -0.3, -0.4, -0.5),
        3,
        drafter_choices=(5, 7, 9),
        proxy_choices=(6, 8, 9),
        alternatives=tuple(((token, -1.0),) for token in range(6)),
    )
    pruned = prune_draft(draft, [0, 1, 2])
    assert pruned.tree == DraftTree((5, 6, 7), (-1, -1, 0))
    assert pruned.confidences == (-0.1, -0.2, -0.3)
    assert pruned.drafter_choices == (5, 7) and pruned.proxy_choices == (6, 8)
    assert pruned.num_tokens_before_eos == 3
    assert pruned.alternatives == draft.alternatives[:4]
    assert prune_draft(draft, range(5)) == draft
    assert prune_draft(draft, [0, 3]).drafter_choices == (5,)


def test_a_cut_draft_has_no_nodes_and_no_tokens_below_the_depth():
    draft = _described(FORKED)
    cut = cut_draft(draft, 1)
    assert cut.tree == DraftTree((5, 6), (-1, -1)) and cut.num_tokens_before_eos == 1
    assert cut_draft(cut, 2) is cut


def _described(tree: DraftTree) -> Draft:
    """Return a draft whose fields tell the nodes that they describe."""
    size = tree.num_nodes
    best = [tree.token_ids[node] for node in best_path(tree)]
    return Draft(
        tree,
        tuple(-float(node) for node in range(size)),
        num_tokens_before_eos=3,
        drafter_choices=tuple(best),
        proxy_choices=tuple(best),
        alternatives=tuple(((node, -1.0),) for node in range(-1, size)),
    )


def test_the_draft_after_a_branch_is_what_stands_below_it():
    rest = draft_after(_described(FORKED), [5])
    assert rest.tree == DraftTree((7, 8, 9), (-1, -1, 0))
    assert rest.confidences == (-2.0, -3.0, -4.0) and rest.num_tokens_before_eos == 2
    assert rest.drafter_choices == rest.proxy_choices == (7, 9)
    assert [entry[0][0] for entry in rest.alternatives] == [0, 2, 3, 4]


def test_the_draft_after_another_branch_than_the_best_has_no_choices():
    rest = draft_after(_described(DraftTree((5, 7, 8, 9), (-1, 0, 0, 2))), [5, 8])
    assert rest.tree == chain([9]) and rest.drafter_choices == rest.proxy_choices == ()


@pytest.mark.parametrize("token_ids", [[7], [5, 9], [9, 9], [6, 5]])
def test_there_is_no_draft_after_tokens_that_are_not_in_it(token_ids):
    assert draft_after(_described(FORKED), token_ids) == EMPTY_DRAFT


@settings(deadline=None)
@given(trees)
def test_a_draft_after_each_branch_holds_the_paths_that_go_on_from_it(tree):
    draft = _described(tree)
    assert draft_after(draft, []) == draft

    def all_paths(one: DraftTree) -> set[tuple[int, ...]]:
        nodes = range(one.num_nodes)
        return {tuple(one.token_ids[i] for i in path_to(one, node)) for node in nodes}

    for path in all_paths(tree):
        rest = draft_after(draft, path).tree
        validate(rest)
        longer = {other[len(path) :] for other in all_paths(tree) if other[: len(path)] == path}
        assert all_paths(rest) == longer - {()}
