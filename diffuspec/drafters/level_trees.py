"""Draft trees of autoregressive heads: grown level by level, then cut to the likeliest nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.drafters.tree_builder import TreeBuilder
from diffuspec.drafters.tree_template import TemplateNode
from diffuspec.models.draft_requests import draft_rounds
from diffuspec.models.heads.features import Features
from diffuspec.models.heads.nodes import DraftNode, LevelHead


class TreeShape(Protocol):
    """How far a tree is grown, and how much of it is drafted."""

    @property
    def max_depth(self) -> int: ...

    @property
    def max_nodes(self) -> int: ...

    @property
    def num_candidates(self) -> int:
        """Number of candidates to find below a node."""
        ...

    def width(self, node: DraftNode) -> int:
        """Number of candidates to keep below a node."""
        ...

    def to_grow(self, level: Sequence[DraftNode]) -> list[DraftNode]:
        """Return the nodes of a level that get children."""
        ...


class StaticShape:
    """The same tree at every step."""

    def __init__(self, template: TemplateNode) -> None:
        self._widths = dict(_widths(template, ()))
        self.max_depth = 1 + max(map(len, self._widths))
        self.max_nodes = sum(self._widths.values())
        self.num_candidates = max(self._widths.values())

    def width(self, node: DraftNode) -> int:
        return self._widths[node.ranks]

    def to_grow(self, level: Sequence[DraftNode]) -> list[DraftNode]:
        return [node for node in level if node.ranks in self._widths]


class LevelTrees:
    """Drafts with a head and a shape; implements DraftHeads."""

    def __init__(self, head: LevelHead, shape: TreeShape, target: TargetInfo) -> None:
        self._head = head
        self._shape = shape
        self._eos_token_ids = frozenset(target.eos_token_ids)
        self._max_requests = target.max_sequences

    def draft(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> list[Draft]:
        drafts: dict[int, Draft] = {}
        for places in draft_rounds(requests, self._max_requests):
            chosen = [requests[place] for place in places]
            self._head.begin(chosen, [features[place] for place in places])
            roots = self._grow(chosen)
            for place, root in zip(places, roots, strict=True):
                drafts[place] = self._choose(requests[place], root)
        return [drafts[place] for place in range(len(requests))]

    def _grow(self, requests: Sequence[DraftRequest]) -> list[DraftNode]:
        """Return a root for each request, with the tree grown below it."""
        roots = [DraftNode() for _ in requests]
        pairs = zip(requests, roots, strict=True)
        level: list[tuple[DraftRequest, list[DraftNode]]] = [(one, [root]) for one, root in pairs]
        depth = 0
        while level:
            depth += 1
            found = self._head.candidates(level, self._shape.num_candidates)
            below = []
            for (request, nodes), by_node in zip(level, found, strict=True):
                new = [
                    child
                    for node, candidates in zip(nodes, by_node, strict=True)
                    for child in node.grow(candidates[: self._shape.width(node)])
                ]
                if depth < min(self._shape.max_depth, request.num_draft_tokens):
                    ends = () if request.sampling.ignore_eos else self._eos_token_ids
                    going_on = [node for node in new if node.token_id not in ends]
                    if chosen := self._shape.to_grow(going_on):
                        below.append((request, chosen))
            level = below
        return roots

    def _choose(self, request: DraftRequest, root: DraftNode) -> Draft:
        """Draft the nodes likeliest to be reached."""
        builder = TreeBuilder(request, self._eos_token_ids)
        most = min(request.max_nodes, self._shape.max_nodes)
        builder.add_likeliest(root, _children, most, request.num_draft_tokens)
        return builder.draft()


def _children(node: DraftNode, depth: int) -> Iterator[tuple[int, float, DraftNode]]:
    return ((child.token_id, child.logprob, child) for child in node.children)


def _widths(node: TemplateNode, ranks: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield, for each node with children, the ranks on its path and its number of children."""
    if node.children:
        yield ranks, len(node.children)
    for rank, child in enumerate(node.children):
        yield from _widths(child, (*ranks, rank))
