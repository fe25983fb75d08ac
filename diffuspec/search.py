"""Causal-consistency path search (CPS): from a lattice to a draft tree.

The drafter guesses every position by itself; a causal proxy says which guesses follow each other.
Eq. 8 weighs the two: S(path) = sum of lambda * l_dlm + (1 - lambda) * l_ng, the proxy's term
conditional on what comes before, all natural logarithms.

Plain Python on short lists: columns are mostly one to six candidates wide, where this is faster
than any array library. Columns with a single candidate are not scored where nothing hangs on it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count

from diffuspec.draft_tree import best_path
from diffuspec.interfaces import CausalProxy, ProxyState
from diffuspec.types import Draft, DraftRequest, DraftTree, Lattice

_HARDLY_REACHED = math.log(0.01)


class PathSearch:
    """`PathScorer` in this process: beam search (Eq. 8) or best-first expansion.

    Without a proxy, or with a drafter weight of 1, the drafter's scores alone decide.
    """

    def __init__(
        self,
        proxy: CausalProxy | None,
        *,
        beam_width: int = 3,  # B
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self._proxy = proxy
        self._beam_width = beam_width
        self._eos_token_ids = frozenset(eos_token_ids)

    async def search(
        self, requests: Sequence[DraftRequest], lattices: Sequence[Lattice]
    ) -> list[Draft]:
        """Return one draft per lattice, in order; see `PathScorer.search`."""
        start = time.perf_counter()
        drafts = [
            self.search_one(request, lattice)
            for request, lattice in zip(requests, lattices, strict=True)
        ]
        seconds = time.perf_counter() - start
        return [replace(draft, search_seconds=seconds) for draft in drafts]

    def search_one(self, request: DraftRequest, lattice: Lattice) -> Draft:
        """Return the draft tree of the shape that the request asks for, best nodes first.

        path: the best path of the beam. beams: the paths of all its final beams, merged.
        best_first: the max_nodes nodes that are likeliest to be reached. Any of them is cut to
        max_nodes by what is least likely to be reached, and may be cut further in the same way.
        """
        scorer = _Scorer(self._proxy, request)
        columns = _columns(lattice, scorer.drafter_weight, self._eos_token_ids)
        if request.tree_shape == "best_first":
            nodes = _best_first(columns, scorer, request.max_nodes)
        else:
            beams = _beam_search(columns, scorer, self._beam_width)
            beams = beams[:1] if request.tree_shape == "path" else beams
            nodes = _merge(beams)[: request.max_nodes]
        draft = _draft(nodes, lattice.num_tokens_before_eos, scorer.has_proxy)
        if not request.num_alternatives:
            return draft
        alternatives = _alternatives(nodes, lattice, scorer, request.num_alternatives)
        return replace(draft, alternatives=alternatives)


@dataclass(slots=True, eq=False)
class _Column:
    token_ids: list[int]
    logprobs: list[float]  # the drafter's
    weighted: list[float]  # lambda * l_dlm
    log_mass: float  # ln of the drafter's probability of all candidates together


@dataclass(slots=True, eq=False)
class _Scored:
    """A column after one history. proxy_logprobs None: the proxy was not asked."""

    column: _Column
    mixed: list[float]  # the terms of Eq. 8
    proxy_logprobs: list[float] | None = None
    states: list[ProxyState] | None = None  # the proxy's, after each candidate

    def state_after(self, choice: int) -> ProxyState:
        return None if self.states is None else self.states[choice]


@dataclass(slots=True, eq=False)
class _Node:
    parent: _Node | None
    scored: _Scored
    choice: int  # candidate of the column
    confidence: float = 0.0
    reach: float = 0.0  # sum of confidences from the root: ln P(node is accepted)
    index: int = -1  # in the draft

    @property
    def token_id(self) -> int:
        return self.scored.column.token_ids[self.choice]


def _columns(lattice: Lattice, weight: float, eos_token_ids: frozenset[int]) -> list[_Column]:
    """Return the lattice as lists, up to the first column that EOS ends.

    EOS is dropped where there is anything else. A path that ended there would win for having
    fewer terms (Eq. 8 is a sum, not a mean), and it would gain nothing: when EOS is what the
    target says, it comes out of the verification of its parent anyway.
    """
    columns = []
    sizes = lattice.num_candidates.tolist()
    rows = zip(lattice.token_ids.tolist(), lattice.logprobs.tolist(), sizes, strict=True)
    for ids, logprobs, size in rows:
        ids, logprobs = ids[:size], logprobs[:size]
        others = None
        if not eos_token_ids.isdisjoint(ids):
            others = [i for i, token_id in enumerate(ids) if token_id not in eos_token_ids]
            if others:
                ids, logprobs = [ids[i] for i in others], [logprobs[i] for i in others]
        columns.append(_column(ids, logprobs, weight))
        if others == []:
            break
    return columns


def _column(token_ids: list[int], logprobs: list[float], weight: float) -> _Column:
    logprobs[0] = min(logprobs[0], 0.0)  # the largest; rounding may take it above
    log_mass = logprobs[0]
    if len(logprobs) > 1:
        log_mass = math.log(min(sum(map(math.exp, logprobs)), 1.0))
    return _Column(token_ids, logprobs, [weight * logprob for logprob in logprobs], log_mass)


class _Scorer:
    """The terms of Eq. 8 for one request."""

    def __init__(self, proxy: CausalProxy | None, request: DraftRequest) -> None:
        weight = request.drafter_weight
        self._proxy = proxy if weight < 1 else None
        self._prefix = request.prefix
        self.has_proxy = self._proxy is not None
        self.drafter_weight = weight if self.has_proxy else 1.0

    def score(self, column: _Column, states: Sequence[ProxyState]) -> list[_Scored]:
        """Score a column after each of the states."""
        if self._proxy is None:
            return [_Scored(column, column.weighted)] * len(states)
        rest = 1 - self.drafter_weight
        rows, next_states = self._proxy.expand(states, column.token_ids)
        scored = []
        for row, afters in zip(rows, next_states, strict=True):
            mixed = [w + rest * logprob for w, logprob in zip(column.weighted, row, strict=True)]
            scored.append(_Scored(column, mixed, row, afters))
        return scored

    def score_after(self, column: _Column, node: _Node | None) -> _Scored:
        """Score a column after a node; the proxy is not asked about a single candidate."""
        if self._proxy is None or len(column.token_ids) == 1:
            return _Scored(column, column.weighted)
        return self.score(column, [self.state_after(node)])[0]

    def state_after(self, node: _Node | None) -> ProxyState:
        """Return the proxy's state after a node, or after the prefix."""
        if self._proxy is None:
            return None
        token_ids: list[int] = []
        while node is not None and node.scored.states is None:
            token_ids.append(node.token_id)
            node = node.parent
        token_ids.reverse()
        if node is None or node.scored.states is None:
            context: list[int] = self._prefix[-self._proxy.max_context_tokens :].tolist()
            return self._proxy.begin(context + token_ids)
        state = node.scored.states[node.choice]
        for token_id in token_ids:
            state = self._proxy.expand([state], [token_id])[1][0][0]
        return state


def _confidences(scored: _Scored) -> list[float]:
    """Return ln P(candidate is right | its history is) for every candidate.

    exp of Eq. 8's terms is no distribution. Normalised over the column it is one, the geometric
    mean of the two sides, given that one of the candidates is right; and the drafter's mass on
    the column is the probability of that. With lambda = 1 this is the drafter's own l_dlm.
    """
    logprobs = scored.column.logprobs
    top = max(scored.mixed)
    if scored.proxy_logprobs is None or len(logprobs) == 1 or top == -math.inf:
        return logprobs
    exp = math.exp
    total = sum([exp(term - top) for term in scored.mixed])
    shift = scored.column.log_mass - math.log(total) - top
    return [term + shift for term in scored.mixed]


def _beam_search(columns: list[_Column], scorer: _Scorer, width: int) -> list[_Node | None]:
    """Return the last nodes of the final beams, best first, without confidences as yet."""
    start, last = _forced_beginning(columns)
    beams = [last]
    scores = [0.0]  # what all beams have in common is left out
    states = [scorer.state_after(last)] if start < len(columns) else []
    for column in columns[start:]:
        scored = scorer.score(column, states)
        totals = [
            score + term for score, row in zip(scores, scored, strict=True) for term in row.mixed
        ]
        best: Sequence[int] = range(len(totals))
        if len(totals) > width:
            best = sorted(best, key=totals.__getitem__, reverse=True)[:width]
        origins = [divmod(i, len(column.token_ids)) for i in best]
        beams = [_Node(beams[beam], scored[beam], choice) for beam, choice in origins]
        states = [scored[beam].state_after(choice) for beam, choice in origins]
        scores = [totals[i] for i in best]
    return [beams[i] for i in sorted(range(len(beams)), key=scores.__getitem__, reverse=True)]


def _forced_beginning(columns: list[_Column]) -> tuple[int, _Node | None]:
    """Return how many columns in front have a single candidate, and the last node there."""
    last = None
    for depth, column in enumerate(columns):
        if len(column.token_ids) > 1:
            return depth, last
        last = _Node(last, _Scored(column, column.weighted), 0)
    return len(columns), last


def _merge(beams: list[_Node | None]) -> list[_Node]:
    """Return the nodes of all beams, each once, likeliest to be reached first."""
    nodes: dict[int, _Node] = {}  # by identity: beams share the nodes of their common beginning
    for node in beams:
        path: list[_Node] = []
        while node is not None and id(node) not in nodes:
            path.append(node)
            node = node.parent
        for node in reversed(path):
            node.confidence = _confidences(node.scored)[node.choice]
            node.reach = node.confidence + (node.parent.reach if node.parent else 0.0)
            nodes[id(node)] = node
    # The sort is stable and no confidence is above 0: a child stays behind its parent.
    return sorted(nodes.values(), key=lambda node: node.reach, reverse=True)


def _best_first(columns: list[_Column], scorer: _Scorer, max_nodes: int) -> list[_Node]:
    """Return the max_nodes nodes likeliest to be reached, in that order.

    The heap holds of every node the likeliest child not yet taken, or its children as yet unscored
    with the most that the likeliest could come to. As no child is likelier than its parent, the
    first of the heap is the likeliest of all that is left.
    """
    nodes: list[_Node] = []
    serial = count()  # older entries first where two are as likely
    heap: list[tuple[float, int, int, _Node | None, _Ranked | None, int]] = []
    if columns:
        heap.append((-columns[0].log_mass, next(serial), 0, None, None, 0))
    while heap and len(nodes) < max_nodes:
        cost, _, depth, parent, children, rank = heappop(heap)
        above = parent.reach if parent else 0.0
        if children is None:
            children = _ranked(scorer.score_after(columns[depth], parent))
            cost = -above - children.confidences[0]
            if heap and heap[0][0] < cost:
                heappush(heap, (cost, next(serial), depth, parent, children, 0))
                continue
        confidence = children.confidences[rank]
        node = _Node(parent, children.scored, children.choices[rank], confidence, -cost)
        nodes.append(node)
        if (rank := rank + 1) < len(children.choices):
            cost = -above - children.confidences[rank]
            heappush(heap, (cost, next(serial), depth, parent, children, rank))
        if (depth := depth + 1) < len(columns):
            cost = -node.reach - columns[depth].log_mass
            heappush(heap, (cost, next(serial), depth, node, None, 0))
    return nodes


@dataclass(slots=True, eq=False)
class _Ranked:
    """Candidates of a scored column, most likely to be right first."""

    scored: _Scored
    choices: Sequence[int]
    confidences: Sequence[float]


def _ranked(scored: _Scored) -> _Ranked:
    confidences = _confidences(scored)
    if scored.proxy_logprobs is None:
        return _Ranked(scored, range(len(confidences)), confidences)
    choices = sorted(range(len(confidences)), key=confidences.__getitem__, reverse=True)
    return _Ranked(scored, choices, [confidences[choice] for choice in choices])


def _draft(nodes: list[_Node], num_tokens_before_eos: int, has_proxy: bool) -> Draft:
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
        proxy_choices=tuple([_proxy_choice(scored) for scored in best]) if has_proxy else (),
    )


def _alternatives(
    nodes: Sequence[_Node], lattice: Lattice, scorer: _Scorer, count: int
) -> tuple[tuple[tuple[int, float], ...], ...]:
    """Return the likeliest tokens after the root and after each node; see `Draft.alternatives`.

    The proxy has its say on runners-up as on candidates, but not below nodes that are hardly ever
    reached.
    """
    columns = _full_columns(lattice, scorer.drafter_weight)
    unassisted = [_likeliest(column, column.logprobs, count) for column in columns] + [()]
    depths = {-1: 0}
    found = []
    for index, node in ((-1, None), *enumerate(nodes)):
        if node is not None:
            depths[index] = 1 + depths[-1 if node.parent is None else node.parent.index]
        depth = min(depths[index], len(columns))
        if depth == len(columns) or (node is not None and node.reach < _HARDLY_REACHED):
            found.append(unassisted[depth])
        else:
            scored = scorer.score(columns[depth], [scorer.state_after(node)])[0]
            found.append(_likeliest(columns[depth], _confidences(scored), count))
    return tuple(found)


def _full_columns(lattice: Lattice, weight: float) -> list[_Column]:
    """Return the lattice with its runners-up."""
    columns = []
    rows = zip(lattice.token_ids.tolist(), lattice.logprobs.tolist(), strict=True)
    for ids, logprobs in rows:
        size = ids.index(-1) if -1 in ids else len(ids)
        ids, logprobs = ids[:size], logprobs[:size]
        columns.append(_column(ids, logprobs, weight))
    return columns


def _likeliest(
    column: _Column, logprobs: Sequence[float], count: int
) -> tuple[tuple[int, float], ...]:
    pairs = zip(column.token_ids, logprobs, strict=True)
    return tuple(sorted(pairs, key=lambda pair: pair[1], reverse=True)[:count])


def _proxy_choice(scored: _Scored) -> int:
    token_ids, logprobs = scored.column.token_ids, scored.proxy_logprobs
    return token_ids[0] if logprobs is None else token_ids[logprobs.index(max(logprobs))]
