"""Draft trees for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diffuspec.core.types import DraftTree


def merge_paths(paths: Iterable[Sequence[int]]) -> DraftTree:
    """Return the tree of all paths, common beginnings merged, nodes in order of appearance."""
    nodes: dict[tuple[int, int], int] = {}  # (parent, token id) -> node
    for path in paths:
        parent = -1
        for token_id in path:
            parent = nodes.setdefault((parent, token_id), len(nodes))
    return DraftTree(tuple(token_id for _, token_id in nodes), tuple(parent for parent, _ in nodes))
