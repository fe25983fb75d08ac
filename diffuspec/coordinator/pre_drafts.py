"""Pre-drafts: while a draft is verified, the likeliest outcomes are drafted ahead of the verdict.

A verdict that was foreseen finds its draft there, or on its way; any other is drafted for just in
time, as if nothing had been drafted ahead. Nothing here changes what a request is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence as Batch
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from diffuspec.control.costs import StepCosts
from diffuspec.control.outcomes import (
    Outcome,
    OutcomeModel,
    OutcomeRanking,
    RankedOutcome,
    outcome_of,
)
from diffuspec.coordinator.ticket import Ticket
from diffuspec.core.params import MAX_OUTCOMES
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest, PreDraftResult, Verdict

_Candidate: TypeAlias = "tuple[RankedOutcome, Foresight]"

_MAX_BATCH = 128  # drafts ahead in one batch, over all requests
_UNPRICED = 4  # outcomes of each request while nothing is known of costs


@dataclass(frozen=True, slots=True, eq=False)
class DraftAhead:
    """A draft that was made ahead."""

    draft: Draft
    num_draft_tokens: int


@dataclass(slots=True, eq=False)
class Foresight:
    """One verification under way: its outcomes, and what is drafted for them."""

    ticket: Ticket
    ranking: OutcomeRanking
    ends_at: float  # the verification, as far as costs are known
    length: int = 0  # of the drafts
    untried: list[RankedOutcome] | None = None  # None: not ranked yet
    num_tried: int = 0
    num_tokens: int = 0  # asked of the drafter
    drafts: dict[Outcome, DraftAhead] = field(default_factory=dict)
    on_their_way: dict[Outcome, int] = field(default_factory=dict)  # their lengths
    happened: Outcome | None = None

    @property
    def draft(self) -> DraftAhead | None:
        """The draft for what happened, if it is there."""
        return None if self.happened is None else self.drafts.get(self.happened)

    @property
    def is_awaited(self) -> bool:
        """Whether the verdict has come and its draft has not."""
        return self.happened is not None and self.happened in self.on_their_way

    @property
    def result(self) -> PreDraftResult | None:
        """How the verdict met the drafts; None: there were none."""
        if not self.num_tried:
            return None
        return "hit" if self.draft is not None or self.is_awaited else "miss"

    @property
    def num_wasted_tokens(self) -> int:
        if self.draft is not None:
            return self.num_tokens - self.draft.num_draft_tokens
        if self.happened is not None:
            return self.num_tokens - self.on_their_way.get(self.happened, 0)
        return self.num_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Hypothesis:
    """An outcome to be drafted for."""

    foresight: Foresight
    outcome: Outcome
    num_draft_tokens: int
    request: DraftRequest


class PreDrafts:
    """What is drafted ahead for all requests of a coordinator."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._model = OutcomeModel()
        self._rankings: dict[Ticket, OutcomeRanking] = {}
        self._under_way: dict[Ticket, Foresight] = {}

    def begin(self, ticket: Ticket, ends_at: float) -> bool:
        """A ticket's draft goes to the verifier, or once more; return whether to look ahead."""
        sequence = ticket.sequence
        if sequence.num_outcomes == 0 or sequence.draft is EMPTY_DRAFT:
            return False
        if ticket in self._under_way:
            self._under_way[ticket].ends_at = ends_at
            return True
        ranking = self._rankings.get(ticket) or OutcomeRanking(self._model)
        self._rankings[ticket] = ranking
        self._under_way[ticket] = Foresight(ticket, ranking, ends_at)
        return True

    def take(
        self, urgent: Collection[Ticket], now: float, is_here: Callable[[Ticket], bool]
    ) -> list[Hypothesis]:
        """Return what to draft ahead beside the drafts that are waited for; [] where nothing pays.

        Of those alone that are here: at the drafter whose batch is filled. They count as on their
        way: `arrive` or `lose` must follow.
        """
        if not self._under_way or self._is_hopeless(now):
            return []
        chosen: list[_Candidate] = []
        priced: list[_Candidate] = []
        for foresight in self._under_way.values():
            if not is_here(foresight.ticket):
                continue
            self._rank(foresight)
            count = foresight.ticket.sequence.num_outcomes
            wanted = priced if count == "auto" else chosen
            left = (MAX_OUTCOMES if count == "auto" else count) - foresight.num_tried
            wanted += [(ranked, foresight) for ranked in (foresight.untried or [])[: max(left, 0)]]
        priced.sort(key=lambda candidate: candidate[0].probability, reverse=True)
        chosen += priced[: self._num_worth_it(priced[:_MAX_BATCH], urgent, now)]
        sent = [_hypothesis(ranked, foresight) for ranked, foresight in chosen[:_MAX_BATCH]]
        for (ranked, _), hypothesis in zip(chosen, sent, strict=False):
            self._send(ranked, hypothesis)
        return sent

    def _is_hopeless(self, now: float) -> bool:
        """Whether not even a certain outcome would pay, so that nothing needs to be ranked."""
        if not (self._costs.draft.is_known and self._costs.verify.is_known):
            return False
        if any(ticket.sequence.num_outcomes != "auto" for ticket in self._under_way):
            return False
        if self._costs.is_alone_wanted:
            return True
        one = self._costs.draft.at(1)
        return len(self._under_way) * max(one - self._seconds_left(now), 0.0) >= one

    def _seconds_left(self, now: float) -> float:
        """How long the verifications under way will take, as far as costs are known."""
        ends = [foresight.ends_at for foresight in self._under_way.values()]
        return max(min(ends, default=now) - now, 0.0)

    def _rank(self, foresight: Foresight) -> None:
        """Rank the outcomes that leave something to draft, once: the verification has begun."""
        if foresight.untried is not None:
            return
        sequence = foresight.ticket.sequence
        foresight.untried = []
        foresight.length = sequence.plan_ahead()
        if foresight.length:
            tree = sequence.draft.tree
            foresight.untried = [
                ranked
                for ranked in foresight.ranking.rank(sequence.draft, sequence.prefix)
                if sequence.length_after(ranked.outcome.committed(tree), foresight.length)
            ]

    def _num_worth_it(
        self, candidates: Batch[_Candidate], urgent: Collection[Ticket], now: float
    ) -> int:
        """Return how many of the candidates, likeliest first, to draft.

        A hit saves a draft just in time. It costs what the batch takes beyond the end of the
        verifications and what it makes them last longer, for which all of them wait, and what it
        takes longer itself, for which the urgent ones wait.
        """
        costs = self._costs
        if not candidates:
            return 0
        if not (costs.draft.is_known and costs.verify.is_known):
            return _UNPRICED * len(self._under_way)
        lengths = np.array([foresight.length for _, foresight in candidates])
        base = sum(ticket.sequence.num_draft_tokens for ticket in urgent)
        sizes = base + np.concatenate([[0], np.cumsum(lengths)])
        table = costs.draft.seconds(int(sizes[-1]))
        probabilities = np.array([ranked.probability for ranked, _ in candidates])
        saved = np.concatenate([[0.0], np.cumsum(probabilities * table[lengths])])
        left = self._seconds_left(now)
        alone = table[base] if urgent else 0.0
        takes = np.concatenate([[alone], table[sizes[1:]]])
        late = np.maximum(takes - left, 0.0) - max(alone - left, 0.0)
        crowded = costs.crowding * np.minimum(takes - alone, left)
        spent = len(self._under_way) * (late + crowded) + len(urgent) * (takes - alone)
        return int(np.argmax(saved - spent))

    def _send(self, ranked: RankedOutcome, hypothesis: Hypothesis) -> None:
        foresight, length = hypothesis.foresight, hypothesis.num_draft_tokens
        assert foresight.untried is not None
        foresight.untried.remove(ranked)
        foresight.num_tried += 1
        foresight.num_tokens += length
        foresight.on_their_way[ranked.outcome] = length

    def resolve(self, ticket: Ticket, verdict: Verdict) -> Foresight | None:
        """A verdict has come, and is not yet committed: learn from it, and see if it was foreseen.

        None: the ticket's draft was not looked ahead from.
        """
        foresight = self._under_way.pop(ticket, None)
        if foresight is not None:
            foresight.ranking.observe(ticket.sequence.draft, verdict)
            foresight.happened = outcome_of(verdict)
        return foresight

    def arrive(self, hypothesis: Hypothesis, made: DraftAhead) -> bool:
        """A draft ahead has come; return whether its ticket waits for it."""
        foresight, outcome = hypothesis.foresight, hypothesis.outcome
        del foresight.on_their_way[outcome]
        foresight.drafts[outcome] = made
        return foresight.happened == outcome

    def lose(self, hypothesis: Hypothesis) -> bool:
        """A draft ahead will not come; return whether its ticket waits for it."""
        foresight, outcome = hypothesis.foresight, hypothesis.outcome
        was_on_its_way = foresight.on_their_way.pop(outcome, None) is not None
        return was_on_its_way and foresight.happened == outcome

    def forget(self, ticket: Ticket) -> None:
        """Drop what is known of a request that has ended."""
        self._under_way.pop(ticket, None)
        self._rankings.pop(ticket, None)


def _hypothesis(ranked: RankedOutcome, foresight: Foresight) -> Hypothesis:
    sequence = foresight.ticket.sequence
    token_ids = ranked.outcome.committed(sequence.draft.tree)
    length = sequence.length_after(token_ids, foresight.length)
    request = sequence.draft_request_after(token_ids, length)
    return Hypothesis(foresight, ranked.outcome, length, request)
