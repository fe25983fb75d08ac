"""How much to draft, to verify and to draft ahead: what commits the most tokens per second.

All follow from the costs, the acceptance, and a price of a second: the tokens that the best
alternative commits in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, count, repeat
from typing import NamedTuple, Protocol

from diffuspec.speculation.acceptance import Choices, Prospects
from diffuspec.speculation.costs import CostModel, DraftCosts
from diffuspec.speculation.guard import SpeculationGuard

# Rates above this share of the best one count as equal: predictions are no more exact.
_NEARLY = 0.98
# length of a draft that explores: its first tokens reveal most and cost least
EXPLORATION_TOKENS = 8
_LEAST_LOSS = 0.25  # a draft that explores loses this share of its wait


class Draftable(Protocol):
    """The part of a request on which the length of its next draft depends."""

    @property
    def request_id(self) -> str: ...

    @property
    def prospects(self) -> Prospects: ...

    @property
    def room(self) -> int:
        """Drafted tokens that may still be committed."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """The batch to which the drafts of one drafter belong."""

    costs: CostModel
    drafter: str
    num_running: int  # decoding requests
    num_drafting: int  # requests that use this drafter
    num_drafters: int = 1  # drafters with this name
    num_unread: Mapping[str, int] | None = None  # prompt tokens to read for requests, by id
    exposed_share: float = 1.0  # share of a draft call for which its requests wait
    overhead_seconds: float = 0.0  # a drafted step spends them on other work than its calls

    @property
    def own(self) -> DraftCosts:
        """The costs of the drafter."""
        return self.costs.drafters[self.drafter]

    @property
    def plain_rate(self) -> float:
        """Tokens per second of plain decoding; 0 while its cost is unknown."""
        if not self.costs.is_known:
            return 0.0
        return self.num_running / self.costs.plain_seconds(self.num_running)

    def seconds(self, positions: Sequence[float], rows: Sequence[float]) -> list[float]:
        """Seconds of steps that draft `positions` and verify `rows` besides the requests' own."""
        each = 1 / self.num_drafters
        sizes = [each * number for number in positions]
        drafting = self.own.seconds_of(sizes, repeat(each * self.num_drafting))
        sizes = [self.num_running + number for number in rows]
        verifying = self.costs.verify_seconds_of(sizes, self.num_running)
        share, more = self.exposed_share, self.overhead_seconds
        return [share * a + b + more for a, b in zip(drafting, verifying, strict=True)]

    def reading_seconds(self, request: Draftable) -> float:
        """Seconds that the drafter needs to read a request's prompt."""
        unread = (self.num_unread or {}).get(request.request_id, 0)
        return self.own.reading_seconds(unread)


def choose_lengths(requests: Sequence[Draftable], load: Load) -> tuple[dict[str, int], float]:
    """Return the draft lengths, by request, with which the batch commits the most per second.

    Also returns the tokens per second if all steps are like this: at least those of plain decoding.

    At each price of a drafted position, a request drafts as long as the next token's chance of
    being accepted is above the price: if positions are expensive, only requests with good chances
    draft. The price with the most tokens per second is chosen, or a higher one that is as good. No
    request drafts if plain decoding commits more, or if the tokens to come do not make up for
    reading its prompt.
    """
    plain, lengths = load.plain_rate, requests[0].prospects.lengths
    if not (load.own.is_known and plain):
        middle = lengths[len(lengths) // 2]
        return {request.request_id: min(middle, request.room) for request in requests}, plain
    choices = [request.prospects.choices_within(request.room) for request in requests]
    reading = [load.reading_seconds(request) for request in requests]
    rates = _rates(choices, load, sum(reading) / sum([1 + request.room for request in requests]))
    best = max(rates)
    if best <= plain:
        return {}, plain
    place = next(k for k, rate in enumerate(rates) if rate >= _NEARLY * best)
    saved = 1 / plain - 1 / best  # seconds for each token
    interference = load.own.interference.value
    chosen = {
        request.request_id: choice.lengths[place]
        for request, choice, seconds in zip(requests, choices, reading, strict=True)
        if choice.tokens[place] > 0 and interference * seconds <= (1 + request.room) * saved
    }
    return chosen, best


def _rates(choices: Sequence[Choices], load: Load, reading: float) -> list[float]:
    """Return tokens per second at each price of a position; `reading`: seconds per token."""
    scale = load.num_drafting / len(choices)
    positions, accepted, rows = [
        [scale * sum(values) for values in zip(*column, strict=True)]
        for column in zip(*choices, strict=True)
    ]
    seconds = load.seconds(positions, rows)
    tokens = [load.num_running + number for number in accepted]
    return [n / (duration + n * reading) for n, duration in zip(tokens, seconds, strict=True)]


def rate_of(lengths: Mapping[str, int], requests: Sequence[Draftable], load: Load) -> float:
    """Tokens per second with given draft lengths; at least that of plain decoding."""
    plain, scale = load.plain_rate, load.num_drafting / max(len(lengths), 1)
    drafted = [request for request in requests if request.request_id in lengths]
    if not plain or not drafted:
        return plain
    accepted = scale * sum(
        [request.prospects.at(lengths[request.request_id]) for request in drafted]
    )
    [seconds] = load.seconds([scale * sum(lengths.values())], [2 * accepted])
    return max((load.num_running + accepted) / seconds, plain)


class Sized(NamedTuple):
    """The draft lengths of requests, and why the others are not drafted for."""

    lengths: Mapping[str, int]  # by request
    rate: float  # tokens per second if all steps are like this
    explored: str | None = None  # a request whose draft is not expected to pay
    reason: str = "no draft pays"


def size(requests: Sequence[Draftable], load: Load, guard: SpeculationGuard) -> Sized:
    """Return lengths like `choose_lengths`, as far as the guard allows drafts.

    If it allows an exploration step, that request is drafted for, too, of which it reveals most.
    """
    name, number, plain = load.drafter, load.num_running, load.plain_rate
    if stopped := guard.num_stopped_steps(name, number):
        reason = f"drafts have lost: none for {stopped:.0f} more plain steps"
        return Sized({}, plain, reason=reason)
    if guard.wants_plain(number):
        return Sized({}, plain, reason="plain decoding is measured")
    lengths, rate = choose_lengths(requests, load)
    rest = [request for request in requests if request.request_id not in lengths]
    if rest:
        request = max(rest, key=lambda other: other.room * other.prospects.chance_of_change)
        length = min(EXPLORATION_TOKENS, request.room)
        if guard.may_explore(name, number, _exploration_steps(request, length, load)):
            explored = request.request_id
            return Sized({**lengths, explored: length}, rate, explored)
    return Sized(lengths, rate)


def _exploration_steps(request: Draftable, length: int, load: Load) -> float:
    """Return the expected loss by a draft of one request, in plain steps.

    All others wait for it, or go on while the request skips a step. Its gain is known only if the
    drafter has read the prompt. Predictions are not so exact that it is free.
    """
    costs, own, number = load.costs, load.own, load.num_running
    plain, reading = costs.plain_seconds(number), load.reading_seconds(request)
    drafting = own.seconds(length, 1) + reading
    beside = max(own.interference.ends(drafting, plain)) - plain + plain / number
    waited = min(drafting, beside) / plain
    without, rows = costs.verify_seconds_of((number, number + length), number)
    gained = 0.0 if reading else request.prospects.at(length) / number
    return max(waited + (rows - without) / plain - gained, _LEAST_LOSS * waited)


# ---- how much to verify


def nodes_to_verify(
    reaches: Sequence[Sequence[float]], num_others: int, costs: CostModel, rate: float
) -> list[int]:
    """Return for each of several drafts how many of its likeliest nodes to verify.

    reaches: the reach of their nodes. All are verified in one pass with `num_others` other rows.
    The number maximises tokens minus `rate` times the seconds of the pass.
    """
    reach = sorted([value for nodes in reaches for value in nodes], reverse=True)
    seconds = costs.verify_seconds_of(range(num_others, num_others + len(reach) + 1), 1)
    gains = accumulate(reach, initial=0.0)
    scores = [gain - rate * spent for gain, spent in zip(gains, seconds, strict=True)]
    number = scores.index(max(scores))
    if len(reaches) == 1:
        return [number]
    least = reach[number - 1] if number else math.inf
    return [sum([value >= least for value in nodes]) for nodes in reaches]


# ---- how much to draft ahead


class Ahead(NamedTuple):
    """A draft that could be made for one outcome of a verification, before its verdict."""

    probability: float
    length: int


def num_ahead(
    outcomes: Sequence[Ahead],
    seconds_left: float,
    costs: DraftCosts,
    awaited: Sequence[int],
    num_verifying: int,
) -> int:
    """Return for how many of the outcomes, likeliest first, to draft now.

    awaited: lengths of drafts in the same call that requests wait for. seconds_left: until the
    verification ends. An outcome is drafted for if the time that a hit would save, times its
    probability, exceeds its cost. Every request being verified pays for the time that the call
    takes beyond the end of the verification, and for slowing it down; the waiting ones pay for the
    longer call.
    """
    lengths = [outcome.length for outcome in outcomes]
    num_awaited, interference = len(awaited), costs.interference.value
    alone, *takes = costs.seconds_of(accumulate(lengths, initial=sum(awaited)), count(num_awaited))
    if not awaited:
        alone = 0.0
    later = costs.seconds_of(lengths, repeat(1))  # each, if it is drafted after the verdict
    best, most, saved = 0, 0.0, 0.0
    for number, (outcome, seconds, once) in enumerate(zip(outcomes, takes, later, strict=True), 1):
        saved += outcome.probability * once
        late = max(seconds - seconds_left, 0.0) - max(alone - seconds_left, 0.0)
        slower = interference * min(seconds - alone, seconds_left)
        spent = num_verifying * (late + slower) + num_awaited * (seconds - alone)
        if saved - spent > most:
            best, most = number, saved - spent
    return best
