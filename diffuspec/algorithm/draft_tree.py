"""Draft trees: building, checking and pruning them, and their depths, paths and masks.

A node is an index into a DraftTree; -1 is the root, the last prefix token. Drafters of this package
list the nodes best first: every leading part of the list contains its nodes' parents, and the first
child of a node is the best one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftTree


def chain(token_ids: Sequence[int]) -> DraftTree:
    """Return the tree with one branch."""
    return DraftTree(tuple(token_ids), _chain_parents(len(token_ids)))


def is_chain(tree: DraftTree) -> bool:
    return tree.parents == _chain_parents(tree.num_nodes)


@lru_cache(maxsize=256)
def _chain_parents(num_nodes: int) -> tuple[int, ...]:
    return tuple(range(-1, num_nodes - 1))


def validate(tree: DraftTree) -> None:
    """Check the invariants of DraftTree. Raises InvalidRequestError naming the first bad node."""
    if _is_sound(tree):
        return
    num_tokens, num_parents = len(tree.token_ids), len(tree.parents)
    if num_tokens != num_parents:
        raise InvalidRequestError(f"draft tree has {num_tokens} tokens but {num_parents} parents")
    seen: set[tuple[int, int]] = set()
    for node, (parent, token_id) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
        if token_id < 0:
            raise InvalidRequestError(f"node {node}: token id must be 0 or more, got {token_id}")
        if not -1 <= parent < node:
            raise InvalidRequestError(
                f"node {node}: parent must be -1 or an earlier node, got {parent}"
            )
        if (parent, token_id) in seen:
            raise InvalidRequestError(f"node {node}: a sibling already carries token id {token_id}")
        seen.add((parent, token_id))


def _is_sound(tree: DraftTree) -> bool:
    """Return whether `validate` would pass: faster, but does not name the bad node."""
    token_ids, parents = tree.token_ids, tree.parents
    if is_chain(tree):
        return min(token_ids, default=0) >= 0
    if not len(token_ids) == len(parents) == len(set(zip(parents, token_ids, strict=False))):
        return False
    return min(token_ids, default=0) >= 0 and all(
        [-1 <= parent < node for node, parent in enumerate(parents)]
    )


def depths(tree: DraftTree) -> tuple[int, ...]:
    """Return each node's distance from the root, at least 1, [num_nodes].

    A node's token has the absolute index len(prefix) - 1 + depth.
    """
    return _depths(tree.parents)


def depth_of(tree: DraftTree) -> int:
    """Return the depth of the deepest node; 0 if there is none."""
    return _depth(tree.parents)


@lru_cache(maxsize=64)
def _depth(parents: tuple[int, ...]) -> int:
    return max(_depths(parents), default=0)


@lru_cache(maxsize=64)  # needed several times while a tree is verified
def _depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return tuple(found)


def ancestor_mask(parents: Sequence[int]) -> NDArray[np.bool_]:
    """Return the mask in which a node sees itself and its ancestors, [num_nodes, num_nodes]."""
    mask = np.zeros((len(parents), len(parents)), np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] = mask[parent]
        mask[node, node] = True
    return mask


def path_to(tree: DraftTree, node: int) -> list[int]:
    """Return the nodes from the root's child down to `node`; none for the root (-1)."""
    if is_chain(tree):
        return list(range(node + 1))
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = tree.parents[node]
    path.reverse()
    return path


def follow(tree: DraftTree, token_ids: Sequence[int]) -> list[int]:
    """Return the nodes of the path from the root with these tokens, as far as it exists."""
    path: list[int] = []
    node = -1
    for token_id in token_ids:
        places = zip(tree.parents, tree.token_ids, strict=True)
        node = next((n for n, place in enumerate(places) if place == (node, token_id)), -1)
        if node < 0:
            break
        path.append(node)
    return path


def best_path(tree: DraftTree) -> list[int]:
    """Return the nodes of the path from the root that follows first children to a leaf."""
    path: list[int] = []
    current = -1
    for node, parent in enumerate(tree.parents):
        if parent == current:
            path.append(node)
            current = node
    return path


def best_chain(tree: DraftTree, values: Sequence[float]) -> set[int]:
    """Return the nodes of the path from the root whose values have the largest sum."""
    sums: list[float] = []
    for value, parent in zip(values, tree.parents, strict=True):
        sums.append(value + (sums[parent] if parent >= 0 else 0.0))
    return set(path_to(tree, sums.index(max(sums)))) if sums else set()


def prune(tree: DraftTree, keep: Iterable[int]) -> DraftTree:
    """Return the tree of the nodes in `keep`, in their old order.

    Raises InvalidRequestError if a node is kept without its parent.
    """
    return _select(tree, sorted(set(keep)))


def prune_draft(draft: Draft, keep: Iterable[int]) -> Draft:
    """Prune a draft's tree, and the fields that describe its nodes.

    The choices of drafter and proxy are kept for the remaining part of the best path.
    """
    left = set(keep)
    kept, depth = sorted(left), None
    if draft.drafter_choices or draft.proxy_choices:
        best = enumerate(best_path(draft.tree))
        depth = next((depth for depth, node in best if node not in left), None)
    return replace(
        draft,
        tree=_select(draft.tree, kept),
        confidences=tuple([draft.confidences[node] for node in kept]),
        drafter_choices=draft.drafter_choices[:depth],
        proxy_choices=draft.proxy_choices[:depth],
        alternatives=draft.alternatives and tuple(draft.alternatives[i + 1] for i in (-1, *kept)),
    )


def cut_draft(draft: Draft, max_depth: int) -> Draft:
    """Return the part of a draft down to a depth: no more tokens than may still be committed."""
    if draft.tree.num_nodes > max_depth:
        kept = [node for node, depth in enumerate(depths(draft.tree)) if depth <= max_depth]
        if len(kept) < draft.tree.num_nodes:
            draft = prune_draft(draft, kept)
    if draft.num_tokens_before_eos > max_depth:
        draft = replace(draft, num_tokens_before_eos=max_depth)
    return draft


def draft_after(draft: Draft, token_ids: Sequence[int]) -> Draft:
    """Return the rest of a draft once these tokens are committed: the part below their branch.

    EMPTY_DRAFT if the draft has no such branch.
    """
    tree = draft.tree
    branch = follow(tree, token_ids)
    if len(branch) < len(token_ids):
        return EMPTY_DRAFT
    root = branch[-1] if branch else -1
    new_index = {root: -1}
    for node, parent in enumerate(tree.parents):
        if parent in new_index:
            new_index[node] = len(new_index) - 1
    kept, is_best = list(new_index)[1:], branch == best_path(tree)[: len(branch)]
    return replace(
        draft,
        tree=DraftTree(
            tuple(tree.token_ids[node] for node in kept),
            tuple(new_index[tree.parents[node]] for node in kept),
        ),
        confidences=tuple(draft.confidences[node] for node in kept),
        num_tokens_before_eos=max(draft.num_tokens_before_eos - len(branch), 0),
        drafter_choices=draft.drafter_choices[len(branch) :] if is_best else (),
        proxy_choices=draft.proxy_choices[len(branch) :] if is_best else (),
        alternatives=draft.alternatives and tuple(draft.alternatives[1 + n] for n in (root, *kept)),
    )


def _select(tree: DraftTree, kept: list[int]) -> DraftTree:
    size = len(kept)
    if not size or kept[-1] == size - 1:  # a leading part contains its nodes' parents
        return DraftTree(tree.token_ids[:size], tree.parents[:size])
    new_index = {-1: -1} | {node: index for index, node in enumerate(kept)}
    for node in kept:
        if tree.parents[node] not in new_index:
            raise InvalidRequestError(
                f"node {node} cannot be kept without its parent {tree.parents[node]}"
            )
    return DraftTree(
        tuple(tree.token_ids[node] for node in kept),
        tuple(new_index[tree.parents[node]] for node in kept),
    )
