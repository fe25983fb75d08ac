"""How much to draft: the lengths with the most committed tokens per second."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from diffuspec.adl.acceptance import Expectation, Offers
from diffuspec.adl.baseline import Baseline
from diffuspec.adl.cost_model import CostModel

# Rates above this share of the best one count as equal: predictions are no more exact. Its value
# hardly matters: machines whose roles work side by side are as fast with 0.9 and 0.99.
_NEARLY = 0.98
# Share of its wait that a trial costs at least: predictions are not so exact that it is free.
_LEAST_PRICE = 0.25
_TRIAL_TOKENS = 8  # length of a trial: a draft's first tokens reveal most and cost least


class Drafted(Protocol):
    """The part of a request on which the length of its next draft depends."""

    @property
    def expectation(self) -> Expectation: ...

    @property
    def room(self) -> int:
        """Drafted tokens that may still be committed."""
        ...


R = TypeVar("R", bound=Drafted)


@dataclass(slots=True)
class Load:
    """The batch to which the drafts of one drafter belong."""

    costs: CostModel
    drafter: str
    num_running: int  # decoding requests
    num_drafting: int  # requests that use this drafter
    num_lanes: int  # drafters with this name
    reading_seconds: float = 0.0  # seconds of reading prompts, per token to be committed
    is_early: bool = False  # whether it drafts while the target reads the prompt
    exposed_share: float = 1.0  # share of a draft call for which its requests wait

    @property
    def plain_rate(self) -> float:
        """Tokens per second of plain decoding; 0 while its cost is unknown."""
        if not self.costs.verification.curve.is_known:
            return 0.0
        return self.num_running / self.costs.plain_seconds(self.num_running)

    def seconds(
        self, positions: Sequence[float], rows: Sequence[float], parts: int = 1
    ) -> list[float]:
        """Seconds of steps that draft `positions` and verify `rows` besides the requests' own.

        parts: 1 if all requests draft together, and are then verified together; 2 if one half
        drafts while the other is verified.
        """
        costs, running, share = self.costs.drafters[self.drafter], self.num_running, 1 / parts
        each, overhead = share / self.num_lanes, costs.overhead_seconds
        sizes = [each * one for one in positions]
        drafting = costs.calls.seconds_of(sizes, each * self.num_drafting)
        sizes = [share * (running + one) for one in rows]
        verifying = self.costs.verification.seconds_of(sizes, share * running)
        pairs = zip(drafting, verifying, strict=True)
        if parts == 1:
            return [self.exposed_share * draft + verify + overhead for draft, verify in pairs]
        return [parts * max(costs.interference.ends(*pair)) + overhead for pair in pairs]

    def rate_of(self, lengths: Mapping[R, int]) -> float:
        """Tokens per second if all drafts are like these; at least that of plain decoding."""
        plain, scale = self.plain_rate, self.num_drafting / max(len(lengths), 1)
        if not plain or not lengths:
            return plain
        accepted = scale * sum([one.expectation.at(k) for one, k in lengths.items()])
        [seconds] = self.seconds([scale * sum(lengths.values())], [2 * accepted])
        return max((self.num_running + accepted) / seconds, plain)

    def pays_for(self, num_unread: int, room: int, rate: float) -> bool:
        """Return whether drafts save the time of reading a prompt in the tokens to come.

        rate: tokens per second with drafts.
        """
        if not num_unread or not self.plain_rate:
            return True
        costs = self.costs.drafters[self.drafter]
        reading = costs.interference.value * costs.reading_seconds(num_unread)
        return reading < (1 + room) * (1 / self.plain_rate - 1 / max(rate, self.plain_rate))

    def trial_steps(self, request: Drafted, num_unread: int = 0) -> float:
        """Expected loss by a trial of one request, in steps of plain decoding.

        All others wait for its draft, or continue while the request skips a step. The
        drafter reads `num_unread` tokens of its prompt first.
        """
        costs, running, verify = self.costs, self.num_running, self.costs.verify_seconds
        own, plain = costs.drafters[self.drafter], costs.plain_seconds(running)
        length = trial_length(request)
        drafting = own.seconds(length, 1, num_unread)
        if self.is_early:
            reading = verify(running + num_unread, running)
            waiting = max(drafting - reading, 0.0) / running
            return (own.interference.value * min(drafting, reading) + waiting) / plain
        beside = max(own.interference.ends(drafting, plain)) - plain + plain / running
        # As many of its nodes are verified as pay, and at least one.
        rows, *more = costs.verification.seconds_of(range(running, running + length + 1), running)
        # Nothing is known yet about the drafts of a request that the drafter has not read.
        share = 0.0 if num_unread else 1 / running
        gains = [share * request.expectation.at(number) for number in range(1, length + 1)]
        lost = min([(one - rows) / plain - gain for one, gain in zip(more, gains, strict=True)])
        waited = min(drafting, beside) / plain
        return max(waited + lost, _LEAST_PRICE * waited)


def choose_lengths(requests: Sequence[R], load: Load) -> tuple[dict[R, int], float]:
    """Return the draft lengths with which the batch commits the most tokens per second.

    Returns the lengths of the requests that draft now, and the tokens per second if all steps are
    like this: at least those of plain decoding.

    At each price of a drafted position, a request drafts as long as the next token's chance of
    being accepted is above the price: if positions are expensive, only requests with good chances
    draft. The price with the most tokens per second is chosen, or a higher one that is as good. No
    request drafts if plain decoding commits more.
    """
    costs, lengths = load.costs, requests[0].expectation.lengths
    if not (costs.drafters[load.drafter].is_known and costs.verification.curve.is_known):
        middle = lengths[len(lengths) // 2]
        return {one: min(middle, one.room) for one in requests}, load.plain_rate
    offers = [one.expectation.offers(one.room) for one in requests]
    best, place, parts = load.plain_rate, -1, 1
    # If both roles share one processor, or drafts are hidden anyway, halves gain nothing.
    may_gain = costs.drafters[load.drafter].interference.value < 1 and load.exposed_share > 0
    for number in (1, 2) if load.num_drafting > 1 and may_gain else (1,):
        rates = _rates(offers, load, number)
        if max(rates) > best:
            best, parts = max(rates), number
            place = next(k for k, rate in enumerate(rates) if rate >= _NEARLY * best)
    found = {
        one: offer.lengths[place]
        for one, offer in zip(requests, offers, strict=True)
        if place >= 0 and offer.tokens[place] > parts - 1
    }
    # One half drafts while the other is verified. Requests that are not listed have drafts.
    half = math.ceil((len(found) + load.num_drafting - len(requests)) / 2)
    return (found if parts == 1 else dict([*found.items()][:half])), best


def _rates(offers: Sequence[Offers], load: Load, parts: int) -> list[float]:
    """Return tokens per second at each price of steps in `parts`: see `Load.seconds`.

    Requests that do not draft are verified with both halves. So in halves a draft must be worth
    more than the token that its request misses.
    """
    scale, running, others = load.num_drafting / len(offers), load.num_running, 0
    if parts > 1:
        others = running - load.num_drafting
        offers = [_halved(one) for one in offers]
    positions, accepted, rows = [
        [scale * sum(one) for one in zip(*column, strict=True)]
        for column in zip(*offers, strict=True)
    ]
    seconds = load.seconds(positions, [others + one for one in rows], parts)
    tokens = [running + others + one for one in accepted]
    reading = load.reading_seconds
    return [number / (one + number * reading) for number, one in zip(tokens, seconds, strict=True)]


def _halved(offer: Offers) -> Offers:
    """Return the offer of a request that is verified with both halves unless it drafts more."""
    either = [one if one[1] > 1 else (0, 1.0, 1.0) for one in zip(*offer, strict=True)]
    return Offers(*map(list, zip(*either, strict=True)))


def trial_length(request: Drafted) -> int:
    """Return the length of a draft whose purpose is to test whether drafts pay."""
    return min(_TRIAL_TOKENS, request.room)


def with_trial(
    requests: Sequence[R],
    load: Load,
    baseline: Baseline,
    trials: dict[R, float],
    num_unread: Callable[[R], int],
) -> tuple[dict[R, int], float]:
    """Return lengths like `choose_lengths`, as far as the guard allows drafts.

    If it allows a trial, the request that gains most by one, too; its cost in plain steps is added
    to `trials`. num_unread: prompt tokens that the drafter has to read for a request.
    """
    running, name = load.num_running, load.drafter
    if not baseline.allows(name, running) or baseline.wants_plain(running):
        return {}, load.plain_rate
    found, rate = choose_lengths(requests, load)
    if load.reading_seconds:
        pays = load.pays_for
        found = {one: k for one, k in found.items() if pays(num_unread(one), one.room, rate)}
    if idle := [one for one in requests if one not in found]:
        request = max(idle, key=lambda one: one.room * one.expectation.chance_of_change)
        steps = load.trial_steps(request, num_unread(request))
        if baseline.allows_trial(name, running, steps):
            trials[request], found[request] = steps, trial_length(request)
    return found, rate
