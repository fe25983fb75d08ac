"""The planner: how much to draft for one engine, by what its steps take and what is accepted.

It decides as the scheduler of our own engine does, with the same models: costs that are measured,
acceptance by confidence, and the guard that compares drafts with plain decoding. What differs is
that the engine waits for its drafts, all of its requests at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffuspec.draft_server.request import EngineRequest
from diffuspec.scheduler.acceptance import nodes_to_verify
from diffuspec.scheduler.baseline import Baseline, Interval
from diffuspec.scheduler.cost_model import CostModel, DraftCosts
from diffuspec.scheduler.draft_sizes import Load, with_trial

_NUM_PLAIN = 3  # plain steps in a row until one counts


@dataclass(slots=True)
class Sent:
    """What the engine verifies after an answer."""

    num_requests: int
    num_nodes: int
    num_expected: float  # drafted tokens to be accepted
    draft_seconds: float  # for which the answer waited for the drafter
    busy_seconds: float  # of the drafter, in total, when it was sent

    @property
    def num_rows(self) -> int:
        return self.num_requests + self.num_nodes


class Planner:
    """Sizes the drafts of one engine, and learns from its steps."""

    def __init__(self, drafter: str, drafting: DraftCosts) -> None:
        """`drafting`: what drafts cost, learnt from the calls of all engines."""
        self._drafter = drafter
        self._costs = CostModel([drafter], 0.0)
        self._mine = self._costs.drafters[drafter]
        self._mine.calls, self._mine.reading = drafting.calls, drafting.reading
        self._baseline = Baseline([drafter])
        self._rate = 0.0  # tokens per second of the best way to go on
        self._num_plain = 0  # latest steps in a row without drafts

    @property
    def costs(self) -> DraftCosts:
        """What drafts cost this engine."""
        return self._mine

    @property
    def rate(self) -> float:
        """Tokens per second that all requests together are expected to commit; 0: not known."""
        return self._rate

    def verify_seconds(self, num_rows: int, num_requests: int) -> float:
        """Expected seconds of a step of the engine."""
        return self._costs.verify_seconds(num_rows, num_requests)

    # ---- what to draft

    def lengths(self, requests: Sequence[EngineRequest]) -> dict[EngineRequest, int]:
        """Return how much to draft for each request; those left out do not draft."""
        may_draft = [one for one in requests if one.room > 0]
        if not may_draft:
            return {}
        unread = sum([_num_unread(one) for one in may_draft])
        reading = self._mine.seconds(1, 1, unread) - self._mine.seconds(1, 1) if unread else 0.0
        reading /= sum([1 + one.room for one in may_draft])
        load = Load(
            self._costs,
            self._drafter,
            len(requests),
            len(may_draft),
            1,
            reading,
            may_split=False,
        )
        trials: dict[EngineRequest, float] = {}
        found, self._rate = with_trial(may_draft, load, self._baseline, trials, _num_unread)
        for steps in trials.values():
            self._baseline.take_trial(self._drafter, len(requests), steps)
        return found

    def lengths_now(
        self, requests: Sequence[EngineRequest], at_hand: Sequence[float], num_rows: int
    ) -> dict[EngineRequest, int]:
        """Return what to draft while the engine waits, for requests whose drafts are not there.

        at_hand: tokens that each gains without. num_rows: verified beside these drafts. The price
        of a position is the one at which the gain is the most above what the seconds are worth.
        """
        if not self._rate:
            return {one: one.length for one in requests}
        offers = [one.expectation.offers(one.room) for one in requests]
        unread, verify = sum([_num_unread(one) for one in requests]), self._costs.verification.curve
        best, chosen = 0.0, {}
        for place in range(len(offers[0].lengths)):
            gainful = [
                (one, offer.lengths[place], offer.tokens[place] - there, offer.rows[place])
                for one, offer, there in zip(requests, offers, at_hand, strict=True)
                if offer.tokens[place] > there
            ]
            lengths = {one: length for one, length, _, _ in gainful}
            rows = round(sum([rows for _, _, _, rows in gainful]))
            seconds = self._mine.seconds(sum(lengths.values()), len(lengths), unread)
            seconds += verify.at(num_rows + rows) - verify.at(num_rows)
            value = sum([gain for _, _, gain, _ in gainful]) - self._rate * seconds
            if value > best:
                best, chosen = value, lengths
        return chosen

    def num_nodes(self, reaches: Sequence[Sequence[float]], num_requests: int) -> list[int]:
        """Return how many of its likeliest nodes to send of each draft."""
        curve = self._costs.verification.curve
        if not curve.is_known or not self._rate or not reaches:
            return [len(one) for one in reaches]
        return nodes_to_verify(reaches, num_requests, curve, self._rate)

    # ---- what the engine reports

    def observe_wait(self, lengths: Sequence[int], seconds: float) -> None:
        """Learn how long the engine waited for drafts of these lengths."""
        if lengths:
            self._mine.observe_wait(sum(lengths), len(lengths), seconds)

    def observe(
        self, sent: Sent, accepted: float, verify: float, wait: float, busy_seconds: float
    ) -> None:
        """Learn from a step of the engine that did nothing but verify what was sent.

        busy_seconds: of the drafter, in total, when the engine reported the step.
        """
        number, name, costs = sent.num_requests, self._drafter, self._costs
        drafting = min(busy_seconds - sent.busy_seconds, verify)
        costs.observe_verification(sent.num_rows, number, verify, {name: drafting})
        self._mine.observe_overhead(wait - sent.draft_seconds)
        plain = costs.plain_seconds(number)
        if not sent.num_nodes and not drafting and not sent.draft_seconds:
            self._num_plain += 1
            is_measured = self._num_plain >= _NUM_PLAIN
            if is_measured:
                costs.observe_plain(number, wait + verify, verify)
            self._baseline.observe_plain(
                Interval(number, wait + verify, plain, plain), is_measured=is_measured
            )
            return
        self._num_plain = 0
        spent = sent.draft_seconds + drafting
        spent += costs.verify_seconds(sent.num_rows, number)
        spent -= costs.verify_seconds(number, number)
        self._baseline.observe(
            Interval(
                number,
                wait + verify,
                plain,
                plain,
                {name: spent},
                {name: accepted},
                {name: sent.num_expected},
            )
        )


def _num_unread(request: EngineRequest) -> int:
    """Return how many tokens the drafter reads for a first draft."""
    return 0 if request.is_read else request.num_tokens
