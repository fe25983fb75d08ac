"""Static trees: which ranks of a node's candidates are drafted, fixed in advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TemplateNode(NamedTuple):
    """A node of a static tree: its children, in order of rank."""

    children: tuple[TemplateNode, ...]


def make_template(num_children: Sequence[Sequence[int]]) -> TemplateNode:
    """Build a static tree and return its root.

    num_children lists, depth by depth starting at the root's, the number of children of each node,
    best ranks first. Nodes omitted at the end of a depth have none; a node's rank is its index
    among its siblings.
    """
    below: list[TemplateNode] = []
    for counts in reversed(num_children):
        leaves = [TemplateNode(())] * (sum(counts) - len(below))
        rest = iter([*below, *leaves])
        below = [TemplateNode(tuple(next(rest) for _ in range(count))) for count in counts]
    return below[0]
