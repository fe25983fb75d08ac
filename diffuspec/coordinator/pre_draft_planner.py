"""PreDraftPlanner: decides which outcomes of the verifications under way to pre-draft."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from diffuspec.control.costs import StepCosts
from diffuspec.control.outcomes import OutcomeModel, OutcomeRanking, RankedOutcome, outcome_of
from diffuspec.coordinator.pre_drafts import PreDraft, PreDrafts
from diffuspec.coordinator.request import Request
from diffuspec.core.params import MAX_OUTCOMES
from diffuspec.core.types import EMPTY_DRAFT, MAX_PRE_DRAFTS, DraftRequest, Verdict

_UNPRICED = 4  # pre-drafts for each request while costs are unknown


class _Candidate(NamedTuple):
    ranked: RankedOutcome
    request: Request
    pre_drafts: PreDrafts


@dataclass(frozen=True, slots=True, eq=False)
class PreDraftJob:
    """A pre-draft that a drafter is asked for."""

    request: Request
    pre_drafts: PreDrafts  # of the verification that it is made for
    pre_draft: PreDraft

    @property
    def draft_request(self) -> DraftRequest:
        return self.pre_draft.request

    def lose(self) -> bool:
        """Give the pre-draft up; return whether its request waits for it."""
        return self.pre_drafts.lose(self.pre_draft)


class PreDraftPlanner:
    """Plans the pre-drafts of all requests that use one drafter, or equal ones.

    An outcome is pre-drafted if the time that a hit would save, times its probability, is above
    what the pre-draft costs all requests.
    """

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._model = OutcomeModel()
        self._under_way: dict[Request, PreDrafts] = {}  # requests being verified

    @property
    def is_idle(self) -> bool:
        """Whether no request is being verified that may be pre-drafted for."""
        return not self._under_way

    def begin(self, request: Request, ends_at: float) -> bool:
        """Note that a request's draft is being verified; return whether to pre-draft for it."""
        if request.num_outcomes == 0 or request.draft is EMPTY_DRAFT:
            return False
        if request in self._under_way:  # verified once more, after an outage
            self._under_way[request].ends_at = ends_at
            return True
        request.ranking = request.ranking or OutcomeRanking(self._model)
        request.pre_drafts = self._under_way[request] = PreDrafts(request.ranking, ends_at)
        return True

    def resolve(self, request: Request, verdict: Verdict) -> None:
        """Learn from a verdict before it is committed; request.pre_drafts tells hit or miss.

        It is None where nothing was pre-drafted for this verification.
        """
        pre_drafts = self._under_way.pop(request, None)
        if pre_drafts is None:
            request.pre_drafts = None
        else:
            pre_drafts.ranking.observe(request.draft, verdict)
            pre_drafts.happened = outcome_of(verdict)

    def forget(self, request: Request) -> None:
        """Pre-draft nothing more for a request."""
        self._under_way.pop(request, None)

    def take(
        self, urgent: Collection[Request], now: float, is_here: Callable[[Request], bool]
    ) -> list[PreDraftJob]:
        """Return what to pre-draft in one batch with the urgent drafts; [] if nothing pays.

        Only requests that `is_here` accepts count: those of the drafter that makes the batch.
        """
        if self.is_idle or self._is_hopeless(now):
            return []
        chosen: list[_Candidate] = []
        priced: list[_Candidate] = []
        for request, pre_drafts in self._under_way.items():
            if is_here(request):
                self._rank(request, pre_drafts)
                candidates = _candidates(request, pre_drafts)
                if request.num_outcomes == "auto":
                    priced += candidates
                else:
                    chosen += candidates
        priced.sort(key=lambda candidate: candidate.ranked.probability, reverse=True)
        chosen += priced[: self._num_worth_it(priced[:MAX_PRE_DRAFTS], urgent, now)]
        jobs = [_job(candidate) for candidate in chosen[:MAX_PRE_DRAFTS]]
        for candidate, job in zip(chosen, jobs, strict=False):
            job.pre_drafts.send(candidate.ranked, job.pre_draft)
        return jobs

    def _is_hopeless(self, now: float) -> bool:
        """Whether even a certain outcome would not pay, so that ranking can be saved."""
        if not (self._costs.draft.is_known and self._costs.verify.is_known):
            return False
        if any(request.num_outcomes != "auto" for request in self._under_way):
            return False
        if self._costs.is_alone_wanted:
            return True
        one = self._costs.draft.at(1)
        return len(self._under_way) * max(one - self._seconds_left(now), 0.0) >= one

    def _seconds_left(self, now: float) -> float:
        """Expected seconds until the first of the verifications under way ends."""
        ends = [pre_drafts.ends_at for pre_drafts in self._under_way.values()]
        return max(min(ends, default=now) - now, 0.0)

    def _rank(self, request: Request, pre_drafts: PreDrafts) -> None:
        """Rank, once per verification, the outcomes that leave something to draft."""
        if pre_drafts.untried is not None:
            return
        pre_drafts.untried = []
        pre_drafts.length = request.plan_pre_drafts()
        if pre_drafts.length:
            tree = request.draft.tree
            pre_drafts.untried = [
                ranked
                for ranked in pre_drafts.ranking.rank(request.draft, request.prefix)
                if request.length_after(ranked.outcome.committed(tree), pre_drafts.length)
            ]

    def _num_worth_it(
        self, candidates: Sequence[_Candidate], urgent: Collection[Request], now: float
    ) -> int:
        """Return how many of the candidates, likeliest first, to pre-draft.

        A hit saves drafting just in time. Every request being verified pays for the time that the
        batch takes beyond the end of the verifications, and for slowing these down; the urgent
        requests pay for the longer batch.
        """
        costs = self._costs
        if not candidates:
            return 0
        if not (costs.draft.is_known and costs.verify.is_known):
            return _UNPRICED * len(self._under_way)
        lengths = [candidate.pre_drafts.length for candidate in candidates]
        base = sum(request.num_draft_tokens for request in urgent)
        price = {length: costs.draft.at(length) for length in set(lengths)}
        gains = [
            candidate.ranked.probability * price[n]
            for candidate, n in zip(candidates, lengths, strict=True)
        ]
        saved = np.array([*accumulate(gains, initial=0.0)])
        left = self._seconds_left(now)
        sizes = accumulate(lengths, initial=base)
        takes = np.array([costs.draft.at(size) for size in sizes])
        takes[0] = alone = takes[0] if urgent else 0.0
        late = np.maximum(takes - left, 0.0) - max(alone - left, 0.0)
        crowded = costs.crowding * np.minimum(takes - alone, left)
        spent = len(self._under_way) * (late + crowded) + len(urgent) * (takes - alone)
        return int(np.argmax(saved - spent))


def _candidates(request: Request, pre_drafts: PreDrafts) -> list[_Candidate]:
    limit = MAX_OUTCOMES if request.num_outcomes == "auto" else request.num_outcomes
    left = max(limit - pre_drafts.num_sent, 0)
    return [_Candidate(ranked, request, pre_drafts) for ranked in (pre_drafts.untried or [])[:left]]


def _job(candidate: _Candidate) -> PreDraftJob:
    ranked, request, pre_drafts = candidate
    token_ids = ranked.outcome.committed(request.draft.tree)
    length = request.length_after(token_ids, pre_drafts.length)
    pre_draft = PreDraft(ranked.outcome, length, request.draft_request_after(token_ids, length))
    return PreDraftJob(request, pre_drafts, pre_draft)
