"""Ranks the possible outcomes of a verification, so that the likeliest can be pre-drafted.

An outcome is the last accepted node and the target's own token there. The probability that a node
is the last accepted one comes from the acceptance model.
Candidates for the target's token come from the draft's alternatives, and from the tokens that
followed the same context earlier in the text. The sum of both scores is calibrated by past
outcomes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from diffuspec.algorithm.calibration import Calibration, FadingCounts
from diffuspec.algorithm.draft_tree import is_chain, path_to
from diffuspec.core.params import MAX_OUTCOMES
from diffuspec.core.types import Draft, DraftTree, TokenIds, Verdict

_MIN_REACH = 0.01  # least reach of a node whose outcomes are ranked
# least share of a node's reach that ends there: confident children may all be wrong
_MIN_ENDING = 0.05
_ALTERNATIVE_WEIGHT = 0.7  # weight of an alternative's probability in its sum with the repeats
MAX_MATCH = 4  # most tokens of context compared
MAX_REPEATS = 3  # most repeats of one context
_MAX_PLACES = 16  # earlier occurrences compared, latest first

# P(token accepted) of the first, second and third repeat, by number of matching tokens (1 to 4);
# measured on the embedded pair at positions where the draft was wrong.
_PRIORS = ((0.4, 0.1, 0.07), (0.65, 0.2, 0.1), (0.6, 0.2, 0.1), (0.85, 0.25, 0.2))
_PRIOR_WEIGHT = 6.0  # in repeats


class Repeat(NamedTuple):
    """A token that followed the same context earlier."""

    token_id: int
    num_matched: int  # tokens of matching context, 1 to MAX_MATCH
    rank: int  # rank from 0: longer matches first, then later ones

    @property
    def cell(self) -> int:
        """Index of its place in _PRIORS."""
        return (self.num_matched - 1) * MAX_REPEATS + self.rank


class Repeats:
    """An index of the tokens of a growing text."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        # indices at which each token occurs
        self._places: defaultdict[int, list[int]] = defaultdict(list)

    def extend(self, text: TokenIds) -> None:
        """Add the new tokens of a text, which must begin with the tokens added so far."""
        for token_id in text[len(self._tokens) :].tolist():
            self._places[token_id].append(len(self._tokens))
            self._tokens.append(token_id)

    def after(self, context: Sequence[int], besides: Collection[int] = ()) -> list[Repeat]:
        """Return up to MAX_REPEATS tokens that followed the end of the context, likeliest first.

        Tokens in `besides` are left out.
        """
        tokens = self._tokens
        matched: dict[int, int] = {}  # token id -> most tokens matched at any occurrence
        for place in reversed(self._places.get(context[-1], [])[-_MAX_PLACES:]):
            if place + 1 < len(tokens) and tokens[place + 1] not in besides:
                num_matched = self._num_matched(context, place)
                if num_matched > matched.get(tokens[place + 1], 0):
                    matched[tokens[place + 1]] = num_matched
        best = sorted(matched.items(), key=lambda item: -item[1])[:MAX_REPEATS]
        return [Repeat(token_id, length, rank) for rank, (token_id, length) in enumerate(best)]

    def _num_matched(self, context: Sequence[int], place: int) -> int:
        """Return how many tokens up to and including `place` match the end of the context."""
        limit = min(MAX_MATCH, len(context), place + 1)
        for length in range(1, limit):
            if self._tokens[place - length] != context[-1 - length]:
                return length
        return limit


class RepeatRates:
    """P(token accepted) of repeats by match length and rank, learnt where drafts were wrong."""

    def __init__(self) -> None:
        self._counts = FadingCounts([prior for row in _PRIORS for prior in row], _PRIOR_WEIGHT)

    def probability(self, repeat: Repeat) -> float:
        return self._counts.right[repeat.cell] / self._counts.seen[repeat.cell]

    def count(self, repeat: Repeat, is_right: bool) -> None:
        self._counts.count(repeat.cell, is_right)


_Place: TypeAlias = tuple[int, int]  # an Outcome, most of which are not worth making


class Outcome(NamedTuple):
    """The last accepted node (-1: the root) and the target's own token there."""

    node: int
    token_id: int

    def committed(self, tree: DraftTree) -> tuple[int, ...]:
        """Return the tokens that this outcome commits."""
        if is_chain(tree):
            return (*tree.token_ids[: self.node + 1], self.token_id)
        return (*[tree.token_ids[node] for node in path_to(tree, self.node)], self.token_id)


def outcome_of(verdict: Verdict) -> Outcome:
    """Return the outcome in a verdict."""
    last = verdict.accepted_nodes[-1] if verdict.accepted_nodes else -1
    return Outcome(last, verdict.token_ids[-1])


class RankedOutcome(NamedTuple):
    outcome: Outcome
    score: float  # orders the ranking
    probability: float  # measured share of outcomes with similar scores that happened


class OutcomeModel:
    """Statistics shared by all requests of a coordinator."""

    def __init__(self) -> None:
        self.repeats = RepeatRates()
        self.scores = Calibration()


class OutcomeRanking:
    """Ranks one request's outcomes: call `rank`, then `observe`, in a verification."""

    def __init__(self, shared: OutcomeModel) -> None:
        self._shared = shared
        self._scores = Calibration(shared.scores)
        self._repeats = Repeats()
        self._repeats_at: dict[int, list[Repeat]] = {}  # repeats in the latest ranking, by node
        self._ranked: list[RankedOutcome] = []

    def rank(self, draft: Draft, reach: Sequence[float], prefix: TokenIds) -> list[RankedOutcome]:
        """Return the MAX_OUTCOMES likeliest outcomes of a draft's verification, best first.

        reach: the probability of each node to be accepted.
        """
        self._repeats.extend(prefix)
        self._repeats_at.clear()
        tree, reach = draft.tree, [1.0, *reach]  # entry 0: the root
        children: list[set[int]] = [set() for _ in reach]
        ending = reach.copy()
        contexts = [tuple(prefix[-MAX_MATCH:].tolist())]
        for node, (parent, token_id) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
            children[parent + 1].add(token_id)
            ending[parent + 1] -= reach[node + 1]
            contexts.append((*contexts[parent + 1], token_id)[-MAX_MATCH:])
        scores: dict[_Place, float] = {}
        for node in range(-1, tree.num_nodes):
            reached = reach[node + 1]
            if reached >= _MIN_REACH:
                self._repeats_at[node] = self._repeats.after(contexts[node + 1], children[node + 1])
                ends = max(ending[node + 1], _MIN_ENDING * reached)
                self._score(scores, draft, node, reached, ends, children[node + 1])
        # Comparisons with NaN, which a drafter may have sent, are false: it is dropped.
        positive = [item for item in scores.items() if item[1] > 0]
        best = sorted(positive, key=itemgetter(1), reverse=True)[:MAX_OUTCOMES]
        chances = [self._scores.probability(math.log(score)) for _, score in best]
        certain = max(sum(chances), 1.0)  # outcomes exclude each other
        self._ranked = [
            RankedOutcome(Outcome(*place), score, chance / certain)
            for (place, score), chance in zip(best, chances, strict=True)
        ]
        return self._ranked

    def _score(
        self,
        scores: dict[_Place, float],
        draft: Draft,
        node: int,
        reached: float,
        ends: float,
        children: set[int],
    ) -> None:
        """Add the outcomes at one node, except its children's tokens: they would be accepted."""
        for token_id, logprob in draft.alternatives[node + 1] if draft.alternatives else ():
            if token_id not in children:
                likely = math.exp(min(logprob, 0.0))
                scores[node, token_id] = _ALTERNATIVE_WEIGHT * reached * likely
        for repeat in self._repeats_at[node]:
            place = node, repeat.token_id
            score = ends * self._shared.repeats.probability(repeat)
            scores[place] = scores.get(place, 0.0) + score

    def observe(self, verdict: Verdict) -> None:
        """Learn from the verdict on the draft that was ranked last."""
        happened = outcome_of(verdict)
        for repeat in self._repeats_at.get(happened.node, ()):
            self._shared.repeats.count(repeat, repeat.token_id == happened.token_id)
        for ranked in self._ranked:
            self._scores.count(math.log(ranked.score), ranked.outcome == happened)
        self._ranked, self._repeats_at = [], {}
