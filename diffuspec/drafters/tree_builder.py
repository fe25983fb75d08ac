"""Grows draft trees node by node, for drafters without a lattice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from diffuspec.algorithm.draft_tree import best_path
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest, DraftTree

ROOT = -1

S = TypeVar("S")
Expand: TypeAlias = Callable[[S, int], Iterable[tuple[int, float, S]]]
"""(state, depth) -> next token ids, their ln P(accepted | parent accepted), their states.

The depth is that of the tokens, 1 below the root.
"""


def draft_each(
    requests: Sequence[DraftRequest], draft: Callable[[DraftRequest], Draft]
) -> list[Draft]:
    """Draft for one request after the other. Each draft reports the seconds of the whole batch."""
    started = time.perf_counter()
    drafts = [draft(request) for request in requests]
    seconds = time.perf_counter() - started
    return [replace(one, draft_seconds=seconds) for one in drafts]


class _Candidate(NamedTuple, Generic[S]):
    cost: float  # -ln P(reached)
    order: int  # order of discovery, for ties
    parent: int
    depth: int
    token_id: int
    confidence: float
    state: S


class TreeBuilder:
    """A draft for one request: at most max_nodes nodes, and none after the end of an answer."""

    def __init__(self, request: DraftRequest, eos_token_ids: Collection[int]) -> None:
        self._max_nodes = request.max_nodes
        self._ends = () if request.sampling.ignore_eos else eos_token_ids
        self._nodes: dict[tuple[int, int], int] = {}  # nodes by parent and token id
        self._confidences: list[float] = []

    def add(self, parent: int, token_id: int, confidence: float) -> int | None:
        """Return the child with this token, added if it is new; None if the draft is full.

        `parent`: a node or ROOT. `confidence`: ln P(accepted | parent accepted) of a new node.
        """
        node = self._nodes.get((parent, token_id))
        if node is None and len(self._nodes) < self._max_nodes:
            node = self._nodes[parent, token_id] = len(self._nodes)
            self._confidences.append(confidence)
        return node

    def is_end(self, token_id: int) -> bool:
        """Whether the token ends the answer: nothing is drafted after it."""
        return token_id in self._ends

    def add_chain(self, token_ids: Iterable[int], confidences: Iterable[float]) -> None:
        """Add a chain of tokens below the root, up to the first that ends the answer."""
        parent = ROOT
        for token_id, confidence in zip(token_ids, confidences, strict=False):
            node = self.add(parent, token_id, confidence)
            if node is None or self.is_end(token_id):
                return
            parent = node

    def add_likeliest(
        self,
        state: S,
        expand: Expand[S],
        max_tokens: int,
        max_depth: int,
        max_width: int | None = None,
    ) -> None:
        """Add the tokens likeliest to be reached below the root, which has the given state.

        At most max_tokens of them, at most max_width at one depth.
        """
        order, widths = count(), Counter[int]()
        heap: list[_Candidate[S]] = []

        def discover(node: int, depth: int, cost: float, state: S) -> None:
            for token_id, confidence, after in expand(state, depth):
                one = (cost - confidence, next(order), node, depth, token_id, confidence, after)
                heappush(heap, _Candidate(*one))

        discover(ROOT, 1, 0.0, state)
        while heap and max_tokens:
            one = heappop(heap)
            if widths[one.depth] == max_width:
                continue
            node = self.add(one.parent, one.token_id, one.confidence)
            if node is None:
                return
            widths[one.depth] += 1
            max_tokens -= 1
            if one.depth < max_depth and not self.is_end(one.token_id):
                discover(node, one.depth + 1, one.cost, one.state)

    def draft(self) -> Draft:
        """Return the draft without its times."""
        if not self._nodes:
            return EMPTY_DRAFT
        parents, token_ids = zip(*self._nodes, strict=True)
        tree = DraftTree(token_ids, parents)
        path = best_path(tree)
        num_before = len(path) - self.is_end(token_ids[path[-1]])
        return Draft(tree, tuple(self._confidences), num_before)
