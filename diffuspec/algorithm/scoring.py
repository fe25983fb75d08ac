"""Scores of a lattice's columns by the drafter and a causal proxy together (Eq. 8).

Plain Python on short lists: most columns have one to six candidates, for which this is faster than
any array library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diffuspec.core.interfaces import CausalProxy, ProxyState
from diffuspec.core.types import DraftRequest, Lattice


@dataclass(slots=True, eq=False)
class Column:
    """The candidates for one position, most probable first."""

    token_ids: list[int]
    logprobs: list[float]  # the drafter's log-probabilities
    weighted: list[float]  # lambda * l_dlm
    log_mass: float  # ln of the drafter's probability of all candidates together


EMPTY_COLUMN = Column([], [], [], 0.0)


@dataclass(slots=True, eq=False)
class Scored:
    """A column's scores after one history; proxy_logprobs is None if the proxy was not used."""

    column: Column
    mixed: list[float]  # the terms of Eq. 8
    proxy_logprobs: list[float] | None = None
    states: list[ProxyState] | None = None  # the proxy's state after each candidate

    def state_after(self, choice: int) -> ProxyState:
        return None if self.states is None else self.states[choice]

    @property
    def proxy_choice(self) -> int:
        """The proxy's best token, or the drafter's if the proxy was not used."""
        token_ids, logprobs = self.column.token_ids, self.proxy_logprobs
        return token_ids[0] if logprobs is None else token_ids[logprobs.index(max(logprobs))]


@dataclass(slots=True, eq=False)
class Node:
    """A candidate chosen after a history."""

    parent: Node | None
    scored: Scored
    choice: int  # index of the candidate in its column
    confidence: float
    reach: float  # sum of confidences from the root: ln P(node is accepted)
    index: int = -1  # the node's index in the draft

    @property
    def token_id(self) -> int:
        return self.scored.column.token_ids[self.choice]


def columns_of(lattice: Lattice, weight: float, eos_token_ids: frozenset[int]) -> list[Column]:
    """Return the lattice's columns as lists, up to the first that holds EOS tokens only.

    EOS is dropped from columns with other candidates. A path that ended there would win because it
    has fewer terms (Eq. 8 is a sum, not a mean), and would gain nothing: if the target's token is
    EOS, verifying its parent returns it anyway.
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
        columns.append(make_column(ids, logprobs, weight))
        if others == []:
            break
    return columns


def make_column(token_ids: list[int], logprobs: list[float], weight: float) -> Column:
    logprobs[0] = min(logprobs[0], 0.0)  # rounding may push the largest one above 0
    log_mass = logprobs[0]
    if len(logprobs) > 1:
        log_mass = math.log(min(sum(map(math.exp, logprobs)), 1.0))
    return Column(token_ids, logprobs, [weight * logprob for logprob in logprobs], log_mass)


class Scorer:
    """Computes the terms of Eq. 8 for one request.

    Without a proxy, or with a drafter weight of 1, only the drafter's scores count.
    """

    def __init__(self, proxy: CausalProxy | None, request: DraftRequest) -> None:
        weight = request.drafter_weight
        self._proxy = proxy if weight < 1 else None
        self._prefix, self._salt = request.prefix, request.sampling.cache_salt
        self.has_proxy = self._proxy is not None
        self.drafter_weight = weight if self.has_proxy else 1.0

    def score(self, column: Column, states: Sequence[ProxyState]) -> list[Scored]:
        """Score a column after each of the states; equal states are scored once."""
        if self._proxy is None:
            return [Scored(column, column.weighted)] * len(states)
        rest, weighted = 1 - self.drafter_weight, column.weighted
        different = states if len(states) == 1 else list(dict.fromkeys(states))
        scored = []
        for row, afters in zip(*self._proxy.expand(different, column.token_ids), strict=True):
            mixed = [w + rest * logprob for w, logprob in zip(weighted, row, strict=True)]
            scored.append(Scored(column, mixed, row, afters))
        if len(different) == len(states):
            return scored
        by_state = dict(zip(different, scored, strict=True))
        return [by_state[state] for state in states]

    def score_after(self, column: Column, node: Node | None) -> Scored:
        """Score a column after a node; the proxy is not used for a single candidate."""
        if self._proxy is None or len(column.token_ids) == 1:
            return Scored(column, column.weighted)
        return self.score(column, [self.state_after(node)])[0]

    def state_after(self, node: Node | None) -> ProxyState:
        """Return the proxy's state after a node, or after the prefix."""
        token_ids: list[int] = []
        while node is not None and node.scored.states is None:
            token_ids.append(node.token_id)
            node = node.parent
        token_ids.reverse()
        if node is None or self._proxy is None:
            return self.begin(token_ids)
        state = node.scored.state_after(node.choice)
        for token_id in token_ids:
            state = self._proxy.expand([state], [token_id])[1][0][0]
        return state

    def begin(self, token_ids: Sequence[int]) -> ProxyState:
        """Return the proxy's state after the prefix and these tokens."""
        if self._proxy is None:
            return None
        context: list[int] = self._prefix[-self._proxy.max_context_tokens :].tolist()
        return self._proxy.begin([*context, *token_ids], self._salt)


def confidences(scored: Scored) -> list[float]:
    """Return ln P(candidate accepted | its history is accepted) for every candidate.

    The exponentials of Eq. 8's terms do not sum to 1. Normalised over the column, they are the
    distribution given that one of the candidates is right: the geometric mean of both sides. The
    probability of that condition is the drafter's mass on the column. With lambda = 1 this is the
    drafter's own l_dlm.
    """
    logprobs, mixed = scored.column.logprobs, scored.mixed
    if scored.proxy_logprobs is None or len(logprobs) == 1:
        return logprobs
    if (top := max(mixed)) == -math.inf:
        return logprobs
    exp = math.exp
    total = sum([exp(term - top) for term in mixed])
    shift = scored.column.log_mass - math.log(total) - top
    return [term + shift for term in mixed]
