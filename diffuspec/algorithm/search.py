"""Causal-consistency path search (CPS): from a lattice to a draft tree.

The drafter predicts every position independently; a causal proxy scores which candidates follow
each other. Eq. 8 combines both: S(path) = sum of lambda * l_dlm + (1 - lambda) * l_ng, in natural
logarithms, with the proxy's term conditional on the tokens before. Columns with a single candidate
are not scored if the score cannot change the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from diffuspec.algorithm.alternatives import find_alternatives
from diffuspec.algorithm.cache_model import CacheModel
from diffuspec.algorithm.draft_tree import best_path
from diffuspec.algorithm.guide import Guide, Guides, admitted, drop_others
from diffuspec.algorithm.retrieval import Continuations, Retrieval, joined, raised
from diffuspec.algorithm.scoring import (
    EMPTY_COLUMN,
    Column,
    Node,
    Scored,
    Scorer,
    columns_of,
    confidences,
)
from diffuspec.core.interfaces import CausalProxy
from diffuspec.core.types import Draft, DraftRequest, DraftTree, Lattice

_Link: TypeAlias = (
    "tuple[_Link | None, Scored, int]"  # a beam: (previous link, scored column, choice)
)


class PathSearch:
    """`PathScorer` in this process: beam search (Eq. 8) or best-first expansion.

    Without a proxy, or with a drafter weight of 1, only the drafter's scores count.
    """

    def __init__(
        self,
        proxy: CausalProxy | None,
        *,
        beam_width: int = 3,  # B
        eos_token_ids: Collection[int] = (),
        guides: Guides | None = None,
        retrieval: Retrieval | None = None,
        cache: CacheModel | None = None,
    ) -> None:
        """Without guides, drafts for structured output may violate its grammar.

        With retrieval, best_first also considers tokens that followed the same text earlier. A
        cache creates each request's proxy from `proxy`.
        """
        self._proxy = proxy
        self._beam_width = beam_width
        self._eos_token_ids = frozenset(eos_token_ids)
        self._guides = guides
        self._retrieval = retrieval
        self._cache = cache

    async def search(
        self, requests: Sequence[DraftRequest], lattices: Sequence[Lattice]
    ) -> list[Draft]:
        """Return one draft per lattice, in order; see `PathScorer.search`."""
        start = time.perf_counter()
        if self._guides is not None and not self._guides.is_ready(requests):
            await asyncio.to_thread(self._guides.prepare, requests)
        drafts = [
            self.search_one(request, lattice)
            for request, lattice in zip(requests, lattices, strict=True)
        ]
        seconds = time.perf_counter() - start
        return [replace(draft, search_seconds=seconds) for draft in drafts]

    def search_one(self, request: DraftRequest, lattice: Lattice) -> Draft:
        """Return the draft tree of the request's shape, best nodes first.

        path: the best path of the beam. beams: the paths of all final beams, merged. best_first:
        the nodes likeliest to be reached. All are cut to the max_nodes nodes likeliest to be
        reached; a caller may cut more from the end. With structured output, drafts follow its
        grammar; best_first continues with the text that the grammar dictates.
        """
        guide = self._guides.guide(request) if self._guides is not None else None
        proxy = self._proxy if self._cache is None else self._cache.proxy_for(request)
        scorer = Scorer(proxy, request)
        columns = columns_of(lattice, scorer.drafter_weight, self._eos_token_ids)
        if request.tree_shape == "best_first":
            found = None if self._retrieval is None else self._retrieval.follow(request)
            nodes = _best_first(_Expansion(columns, scorer, guide, found), request)
        else:
            beams = _beam_search(columns, scorer, self._beam_width)
            beams = beams[:1] if request.tree_shape == "path" else beams
            nodes = _merge(beams)
            nodes = (nodes if guide is None else drop_others(nodes, guide))[: request.max_nodes]
        draft = _draft(nodes, lattice.num_tokens_before_eos, scorer.has_proxy)
        if not request.num_alternatives:
            return draft
        count = request.num_alternatives
        alternatives = find_alternatives(nodes, draft.tree, lattice, scorer, count)
        return replace(draft, alternatives=alternatives)


def _beam_search(columns: list[Column], scorer: Scorer, width: int) -> list[_Link | None]:
    """Return the last links of the final beams, best first."""
    num_forced = _num_forced(columns)
    beam: _Link | None = None
    for column in columns[:num_forced]:
        beam = (beam, Scored(column, column.weighted), 0)
    beams = [beam]
    scores = [0.0]  # sums without the leading forced columns, which all beams share
    states = []
    if num_forced < len(columns):
        states.append(scorer.begin([column.token_ids[0] for column in columns[:num_forced]]))
    for column in columns[num_forced:]:
        scored = scorer.score(column, states)
        totals = [
            score + term for score, row in zip(scores, scored, strict=True) for term in row.mixed
        ]
        best: Sequence[int] = range(len(totals))
        if len(totals) > width:
            best = sorted(best, key=totals.__getitem__, reverse=True)[:width]
        size = len(column.token_ids)
        links: list[_Link] = [(beams[i // size], scored[i // size], i % size) for i in best]
        states = [row.state_after(choice) for _, row, choice in links]
        beams = [*links]
        scores = [totals[i] for i in best]
    return [beams[i] for i in sorted(range(len(beams)), key=scores.__getitem__, reverse=True)]


def _num_forced(columns: list[Column]) -> int:
    """Return the number of leading columns with a single candidate."""
    sizes = (len(column.token_ids) for column in columns)
    return next((depth for depth, size in enumerate(sizes) if size > 1), len(columns))


def _merge(beams: list[_Link | None]) -> list[Node]:
    """Return the nodes of all beams without duplicates, likeliest to be reached first."""
    nodes: dict[int, Node] = {}  # by id(link): beams share the links of a common beginning
    for link in beams:
        path: list[_Link] = []
        while link is not None and id(link) not in nodes:
            path.append(link)
            link = link[0]
        parent = None if link is None else nodes[id(link)]
        for link in reversed(path):
            _, scored, choice = link
            confidence = confidences(scored)[choice]
            reach = confidence + (parent.reach if parent else 0.0)
            parent = nodes[id(link)] = Node(parent, scored, choice, confidence, reach)
    # The sort is stable and no confidence is above 0: a child stays behind its parent.
    return sorted(nodes.values(), key=lambda node: node.reach, reverse=True)


def _best_first(expansion: _Expansion, request: DraftRequest) -> list[Node]:
    """Return the max_nodes nodes likeliest to be reached, in that order.

    For every node taken, the heap holds its likeliest remaining child, or an entry for its unscored
    children with an upper bound of their reach. No child is likelier than its parent, so the heap's
    first entry is the likeliest remaining node.
    """
    nodes: list[Node] = []
    log_masses = expansion.log_masses(request.num_draft_tokens)
    serial = count()  # breaks ties: older entries first
    heap: list[tuple[float, int, int, Node | None, _Ranked | None, int]] = []
    if log_masses:
        heap.append((-log_masses[0], next(serial), 0, None, None, 0))
    while heap and len(nodes) < request.max_nodes:
        cost, _, depth, parent, children, rank = heappop(heap)
        above = parent.reach if parent else 0.0
        if children is None:
            children = expansion.children(depth, parent)
            if children is None:
                continue
            cost = -above - children.confidences[0]
            if heap and heap[0][0] < cost:
                heappush(heap, (cost, next(serial), depth, parent, children, 0))
                continue
        confidence = children.confidences[rank]
        node = Node(parent, children.scored, children.choices[rank], confidence, -cost)
        nodes.append(node)
        if (rank := rank + 1) < len(children.choices):
            cost = -above - children.confidences[rank]
            heappush(heap, (cost, next(serial), depth, parent, children, rank))
        if (depth := depth + 1) < len(log_masses):
            cost = -node.reach - log_masses[depth]
            heappush(heap, (cost, next(serial), depth, node, None, 0))
    return nodes


@dataclass(slots=True, eq=False)
class _Expansion:
    """The children of a node: candidates of the lattice, of earlier text, or of a grammar alone."""

    columns: list[Column]
    scorer: Scorer
    guide: Guide | None
    continuations: Continuations | None

    def log_masses(self, num_draft_tokens: int) -> list[float]:
        """Return an upper bound of the confidences at each depth."""
        if self.guide is not None or self.continuations is not None:
            # earlier text and grammars may raise a candidate above its column's mass
            return [0.0] * num_draft_tokens
        return [column.log_mass for column in self.columns]

    def children(self, depth: int, parent: Node | None) -> _Ranked | None:
        """Return the candidates below a node, likeliest first; None if there are none."""
        lattice = self.columns[depth] if depth < len(self.columns) else EMPTY_COLUMN
        found = None if self.continuations is None else self.continuations.after(parent)
        column = lattice
        if found is not None:
            column = joined(column, found, self.scorer.drafter_weight)
        if self.guide is not None:
            column = admitted(column, parent, self.guide)
        if not column.token_ids:
            return None
        scored = self.scorer.score_after(column, parent)
        ranking = confidences(scored)
        if found is not None:
            ranking = raised(ranking, column, lattice, found)
        elif scored.proxy_logprobs is None:
            return _Ranked(scored, range(len(ranking)), ranking)
        choices = sorted(range(len(ranking)), key=ranking.__getitem__, reverse=True)
        return _Ranked(scored, choices, [ranking[choice] for choice in choices])


@dataclass(slots=True, eq=False)
class _Ranked:
    """Candidates of a scored column, likeliest first."""

    scored: Scored
    choices: Sequence[int]
    confidences: Sequence[float]


def _draft(nodes: list[Node], num_tokens_before_eos: int, has_proxy: bool) -> Draft:
    parents = []
    for index, node in enumerate(nodes):
        node.index = index
        parents.append(-1 if node.parent is None else node.parent.index)
    tree = DraftTree(tuple([node.token_id for node in nodes]), tuple(parents))
    best = [nodes[index].scored for index in best_path(tree)]
    return Draft(
        tree,
        tuple([node.confidence for node in nodes]),
        num_tokens_before_eos,
        drafter_choices=tuple([scored.column.token_ids[0] for scored in best]),
        proxy_choices=tuple([scored.proxy_choice for scored in best]) if has_proxy else (),
    )
