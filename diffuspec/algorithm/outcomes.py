"""Ranks the possible outcomes of a verification, so that the likeliest can be pre-drafted.

An outcome is the last accepted node and the target's own token there. The probability that a node
is the last comes from the drafter's confidences, calibrated by past acceptance. The target's token
comes from the draft's alternatives, and from the tokens that followed the same context earlier in
the text. The sum of both scores is calibrated by past outcomes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from diffuspec.algorithm.calibration import AcceptanceModel, Calibration
from diffuspec.algorithm.draft_tree import path_to
from diffuspec.algorithm.repeats import MAX_MATCH, Repeat, RepeatRates, Repeats
from diffuspec.core.params import MAX_OUTCOMES
from diffuspec.core.types import Draft, DraftTree, TokenIds, Verdict

_MIN_REACH = 0.01  # least reach of a node whose outcomes are ranked: others are unlikely
_MIN_ENDING = 0.05  # least share of a node's reach: confident children may all be wrong
_ALTERNATIVE_WEIGHT = 0.7  # share of an alternative's probability in the sum with the repeats


@dataclass(frozen=True, slots=True)
class Outcome:
    """The last accepted node (-1: the root) and the target's own token there."""

    node: int
    token_id: int

    def committed(self, tree: DraftTree) -> tuple[int, ...]:
        """Return the tokens that this outcome commits."""
        return (*(tree.token_ids[node] for node in path_to(tree, self.node)), self.token_id)


def outcome_of(verdict: Verdict) -> Outcome:
    """Return the outcome that a verdict states."""
    last = verdict.accepted_nodes[-1] if verdict.accepted_nodes else -1
    return Outcome(last, verdict.token_ids[-1])


@dataclass(frozen=True, slots=True)
class RankedOutcome:
    outcome: Outcome
    score: float  # orders the ranking
    probability: float  # measured share of outcomes with such scores that happened


class OutcomeModel:
    """Statistics shared by all requests of a coordinator."""

    def __init__(self) -> None:
        self.acceptance = AcceptanceModel()
        self.repeats = RepeatRates()
        self.scores = Calibration()


class OutcomeRanking:
    """Ranks one request's outcomes: call rank, then observe, for every verification."""

    def __init__(self, shared: OutcomeModel) -> None:
        self._shared = shared
        self._acceptance = AcceptanceModel(shared.acceptance)
        self._scores = Calibration(shared.scores)
        self._repeats = Repeats()
        self._repeats_at: dict[int, list[Repeat]] = {}  # repeats of the last ranking by node
        self._ranked: list[RankedOutcome] = []

    def rank(self, draft: Draft, prefix: TokenIds) -> list[RankedOutcome]:
        """Return the MAX_OUTCOMES likeliest outcomes of a draft's verification, best first."""
        self._repeats.extend(prefix)
        self._repeats_at.clear()
        tree, reach = draft.tree, [1.0, *self._acceptance.reach(draft)]  # entry 0: the root
        children: list[set[int]] = [set() for _ in reach]
        ending = reach.copy()
        contexts = [tuple(prefix[-MAX_MATCH:].tolist())]
        for node, (parent, token_id) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
            children[parent + 1].add(token_id)
            ending[parent + 1] -= reach[node + 1]
            contexts.append((*contexts[parent + 1], token_id)[-MAX_MATCH:])
        scores: dict[Outcome, float] = {}
        for node in range(-1, tree.num_nodes):
            reached = reach[node + 1]
            if reached >= _MIN_REACH:
                self._repeats_at[node] = self._repeats.after(contexts[node + 1], children[node + 1])
                ends = max(ending[node + 1], _MIN_ENDING * reached)
                self._score(scores, draft, node, reached, ends, children[node + 1])
        # No comparison holds for a NaN, which a drafter may have sent: it is dropped.
        positive = [item for item in scores.items() if item[1] > 0]
        best = sorted(positive, key=lambda item: item[1], reverse=True)[:MAX_OUTCOMES]
        chances = [self._scores.probability(math.log(score)) for _, score in best]
        certain = max(sum(chances), 1.0)  # outcomes exclude each other
        self._ranked = [
            RankedOutcome(outcome, score, chance / certain)
            for (outcome, score), chance in zip(best, chances, strict=True)
        ]
        return self._ranked

    def _score(
        self,
        scores: dict[Outcome, float],
        draft: Draft,
        node: int,
        reached: float,
        ends: float,
        children: set[int],
    ) -> None:
        """Add the outcomes at one node. A child's token is none of them: it would be accepted."""
        for token_id, logprob in draft.alternatives[node + 1] if draft.alternatives else ():
            if token_id not in children:
                likely = math.exp(min(logprob, 0.0))
                scores[Outcome(node, token_id)] = _ALTERNATIVE_WEIGHT * reached * likely
        for repeat in self._repeats_at[node]:
            outcome = Outcome(node, repeat.token_id)
            score = ends * self._shared.repeats.probability(repeat)
            scores[outcome] = scores.get(outcome, 0.0) + score

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from the verdict on the draft ranked last."""
        happened = outcome_of(verdict)
        self._acceptance.observe(draft, verdict)
        for repeat in self._repeats_at.get(happened.node, ()):
            self._shared.repeats.count(repeat, repeat.token_id == happened.token_id)
        for ranked in self._ranked:
            is_right = ranked.outcome == happened
            self._scores.count(math.log(ranked.score), is_right)
            self._shared.scores.count(math.log(ranked.score), is_right)
        self._ranked = []
