"""How much to draft: lengths of drafts, and how many outcomes of a verification to draft ahead.

Both are those with the most committed tokens per second, by expected acceptance and costs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from diffuspec.algorithm.outcomes import RankedOutcome
from diffuspec.core.params import MAX_OUTCOMES
from diffuspec.core.types import MAX_PRE_DRAFTS
from diffuspec.scheduler.cost_model import CostModel, DraftCosts, together
from diffuspec.scheduler.drafters import PreDraftJob
from diffuspec.scheduler.pre_drafts import PreDraft, PreDrafts
from diffuspec.scheduler.request import Request

_TRIAL_TOKENS = 8  # of a trial: the first tokens of a draft tell most about it, and cost least


class Lengths(NamedTuple):
    """How long the next drafts of some requests are, and what they give."""

    by_request: dict[Request, int]  # those left out do not draft
    rate: float  # tokens per second if all go on like this; at least that of plain decoding
    in_halves: bool = False  # of which one drafts while the other is verified


@dataclass(frozen=True, slots=True)
class Load:
    """The batch that the drafts of one drafter are part of."""

    costs: CostModel
    drafter: str
    num_running: int  # requests that decode
    num_drafting: int  # those that use this drafter
    num_lanes: int  # drafters that share them
    reading_seconds: float = 0.0  # of prompts, for each token that their requests may commit

    @property
    def plain_rate(self) -> float:
        """Tokens per second of plain decoding; 0 while its cost is not known."""
        if not self.costs.verification.curve.is_known:
            return 0.0
        return self.num_running / self.costs.plain_seconds(self.num_running)

    def joint_seconds(self, positions: Sequence[float], rows: Sequence[float]) -> list[float]:
        """Seconds of steps in which all draft together, and then verify all.

        `positions` are drafted in each, and as many `rows` more verified as are given beside them.
        """
        return self._seconds(positions, rows, 1)[0]

    def halves_seconds(self, positions: Sequence[float], rows: Sequence[float]) -> list[float]:
        """Seconds of the same in two halves, of which one drafts while the other is verified."""
        costs = self.costs.drafters[self.drafter]
        _, drafting, verifying = self._seconds(positions, rows, 2)
        return [
            2 * max(together(draft, verify, costs.interference)) + costs.overhead_seconds
            for draft, verify in zip(drafting, verifying, strict=True)
        ]

    def _seconds(
        self, positions: Sequence[float], rows: Sequence[float], parts: int
    ) -> tuple[list[float], list[float], list[float]]:
        """Seconds of steps, and those of the draft calls and verifications of a part of each."""
        costs, running, lanes = self.costs.drafters[self.drafter], self.num_running, self.num_lanes
        table = costs.calls.curve.up_to(round(max(positions) / lanes / parts))
        more = costs.calls.request_seconds * max(self.num_drafting / lanes / parts - 1, 0)
        share = 1 / lanes / parts
        drafting = [table[round(share * one)] + more for one in positions]
        verification, exposed = self.costs.verification, costs.exposed_share
        table = verification.curve.up_to(round((running + max(rows)) / parts))
        more = verification.request_seconds * max(running / parts - 1, 0)
        verifying = [table[round((running + one) / parts)] + more for one in rows]
        overhead = costs.overhead_seconds
        joint = [
            exposed * draft + verify + overhead
            for draft, verify in zip(drafting, verifying, strict=True)
        ]
        return joint, drafting, verifying

    def rate_of(self, lengths: dict[Request, int]) -> float:
        """Tokens per second if all drafts are like these; at least those of plain decoding."""
        plain, scale = self.plain_rate, self.num_drafting / max(len(lengths), 1)
        if not plain or not lengths:
            return plain
        accepted = scale * sum([one.expectation.at(k) for one, k in lengths.items()])
        [seconds] = self.joint_seconds([scale * sum(lengths.values())], [2 * accepted])
        return max((self.num_running + accepted) / seconds, plain)

    def trial_steps(self, length: int, num_unread: int = 0) -> float:
        """Cost of a trial of one request in steps of plain decoding: all others wait for it.

        The drafter reads `num_unread` tokens of its prompt first.
        """
        costs, running = self.costs, self.num_running
        seconds = costs.drafters[self.drafter].seconds(length, 1, num_unread)
        seconds += costs.verify_seconds(running + length, running)
        seconds -= costs.verify_seconds(running, running)
        return seconds / costs.plain_seconds(running)


def choose_lengths(requests: Sequence[Request], load: Load) -> Lengths:
    """Return the draft lengths with which the batch commits the most tokens per second.

    At each price of a drafted position, a request drafts as far as the next token's chance of being
    accepted is above it: where positions are dear, only those with good chances draft. The price is
    the one with the most tokens per second. None drafts if plain decoding commits more.
    """
    costs, lengths = load.costs, requests[0].expectation.lengths
    if not (costs.drafters[load.drafter].is_known and costs.verification.curve.is_known):
        middle = lengths[len(lengths) // 2]
        return Lengths({one: min(middle, one.room) for one in requests}, load.plain_rate)
    offers = [one.expectation.offers(one.room) for one in requests]
    scale = load.num_drafting / len(requests)
    positions = [scale * sum(values) for values in zip(*[one.lengths for one in offers], strict=True)]
    accepted = [scale * sum(values) for values in zip(*[one.tokens for one in offers], strict=True)]
    rows = [scale * sum(values) for values in zip(*[one.rows for one in offers], strict=True)]
    best, place, in_halves = load.plain_rate, -1, False
    ways = [load.joint_seconds]
    if load.num_drafting > 1:
        ways.append(load.halves_seconds)
    for way, seconds_of in enumerate(ways):
        for number, seconds in enumerate(seconds_of(positions, rows)):
            tokens = load.num_running + accepted[number]
            rate = tokens / (seconds + tokens * load.reading_seconds)
            if positions[number] and rate > best:
                best, place, in_halves = rate, number, way > 0
    found = {
        one: offer.lengths[place]
        for one, offer in zip(requests, offers, strict=True)
        if place >= 0 and offer.lengths[place]
    }
    return Lengths(found, best, in_halves)


def trial_length(request: Request) -> int:
    """Return the length of a draft that is to tell whether drafts pay."""
    return min(_TRIAL_TOKENS, request.room)


class _Candidate(NamedTuple):
    ranked: RankedOutcome
    request: Request
    pre_drafts: PreDrafts
    num_draft_tokens: int


def choose_outcomes(
    verifying: Collection[Request],
    seconds_left: float,
    costs: DraftCosts,
    waiting: dict[Request, int],
) -> list[PreDraftJob]:
    """Return what to draft ahead for requests that are being verified, in one call of a drafter.

    The call has the drafts of `waiting` requests, too. An outcome is drafted if the time that a hit
    would save, times its probability, is above what it costs all requests.
    """
    known = costs.seconds(1, 1)
    is_priced = all([one.speculation.num_outcomes == "auto" for one in verifying])
    if is_priced and len(verifying) * max(known - seconds_left, 0.0) >= known > 0:
        return []  # not even a certain outcome would pay
    chosen: list[_Candidate] = []
    priced: list[_Candidate] = []
    for request in verifying:
        found = _candidates(request)
        (priced if request.speculation.num_outcomes == "auto" else chosen).extend(found)
    priced.sort(key=lambda one: one.ranked.probability, reverse=True)
    left = max(MAX_PRE_DRAFTS - len(chosen), 0)
    num_priced = _num_worth_it(priced[:left], seconds_left, costs, waiting, len(verifying))
    return [_job(one) for one in [*chosen, *priced[:num_priced]][:MAX_PRE_DRAFTS]]


def _candidates(request: Request) -> list[_Candidate]:
    pre_drafts, draft = request.pre_drafts, request.step.draft
    length = request.last_length
    if pre_drafts is None or not length:
        return []
    allowed = request.speculation.num_outcomes
    limit = MAX_OUTCOMES if allowed == "auto" else allowed
    ranked = pre_drafts.rank(draft, request.prefix, request.room_after)
    return [
        _Candidate(one, request, pre_drafts, length)
        for one in ranked[: max(limit - pre_drafts.num_sent, 0)]
    ]


def _num_worth_it(
    candidates: Sequence[_Candidate],
    seconds_left: float,
    costs: DraftCosts,
    waiting: dict[Request, int],
    num_verifying: int,
) -> int:
    """Return how many of the candidates, likeliest first, to draft ahead.

    Every request being verified pays for the time that the call takes beyond the end of the
    verification, and for slowing it down; the waiting requests pay for the longer call.
    """
    sizes = [
        *accumulate([one.num_draft_tokens for one in candidates], initial=sum(waiting.values()))
    ]
    takes = [costs.seconds(size, len(waiting) + n) for n, size in enumerate(sizes)]
    alone = takes[0] if waiting else 0.0
    best, most, saved = 0, 0.0, 0.0
    for number, one in enumerate(candidates, start=1):
        saved += one.ranked.probability * costs.seconds(one.num_draft_tokens, 1)
        late = max(takes[number] - seconds_left, 0.0) - max(alone - seconds_left, 0.0)
        slower = costs.interference * min(takes[number] - alone, seconds_left)
        spent = num_verifying * (late + slower) + len(waiting) * (takes[number] - alone)
        if saved - spent > most:
            best, most = number, saved - spent
    return best


def _job(candidate: _Candidate) -> PreDraftJob:
    ranked, request, pre_drafts, length = candidate
    token_ids = ranked.outcome.committed(request.step.draft.tree)
    length = min(length, request.room_after(token_ids))
    wanted = request.draft_request_after(token_ids, length)
    return PreDraftJob(request, pre_drafts, PreDraft(ranked.outcome, length, wanted))
