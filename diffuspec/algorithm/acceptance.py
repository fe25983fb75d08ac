"""Acceptance: the part of a draft tree that agrees with the target's own tokens.

Losslessness rests on this alone: every returned token is the target's own, drawn after the true
tokens before it. The draft only decides how many tokens one verification yields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffuspec.core.types import DraftTree


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The accepted part of a draft tree."""

    accepted_nodes: tuple[int, ...]  # root to leaf
    # the accepted tokens and then the target's own: one more than accepted_nodes
    token_ids: tuple[int, ...]


def accept_whole(chain: DraftTree, target_token_ids: Sequence[int]) -> Acceptance:
    """Accept every token of a chain that is a part of the prompt."""
    nodes = tuple(range(chain.num_nodes))
    return Acceptance(nodes, (*chain.token_ids, target_token_ids[chain.num_nodes]))


def accept(tree: DraftTree, target_token_ids: Sequence[int]) -> Acceptance:
    """Walk down the tree as long as a child carries the target's token at its parent.

    target_token_ids holds the target's token at the root, then at every node, [num_nodes + 1].
    The target's token at the last accepted node ends the step: a correction if the draft disagrees
    there, a bonus if the draft ends there.
    """
    assert len(target_token_ids) == tree.num_nodes + 1, "one target token per node and the root"
    accepted: list[int] = []
    token_ids = [target_token_ids[0]]
    current = -1
    # One pass is enough: children come after their parent, and siblings carry different tokens.
    for node, (parent, token_id) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
        if parent == current and token_id == token_ids[-1]:
            accepted.append(node)
            token_ids.append(target_token_ids[node + 1])
            current = node
    return Acceptance(tuple(accepted), tuple(token_ids))
