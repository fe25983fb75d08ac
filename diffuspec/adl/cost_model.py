"""The cost model: seconds of a verification and of a draft call, and their interference.

A measured time is that of a role's whole answer: the forward, waiting for the worker, and
transport. The model is profiled when an engine starts, and uses moving averages while it decodes. A
machine's speed varies as other programs come and go, so all costs on one machine share its speed:
those not measured for a while follow plain decoding, and keep their ratio to it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diffuspec.adl.cost_curve import (
    MAX_JUMP,
    MIN_SECONDS,
    OWN_SMOOTHING,
    SMOOTHING,
    CostCurve,
    Speed,
    bucket_of,
)

_LEAST_ROWS = 64
# Measurements of the speed for which a step with the rows of a plain one counts; a prediction: one.
_MEASURED_COUNT = 3
# Share of a plain step's unexpected seconds that its size explains; the machine explains the rest.
_PLAIN_SHARE = 0.5


@dataclass(slots=True)
class _Usual:
    """Averages over the calls of about one size."""

    others: float  # requests after the first
    seconds: float  # on a machine with a slowness of 1


class RequestTerm:
    """The seconds of a request in a batch: the slope of time over requests in calls of one size.

    It is a regression over deviations from the averages of calls of about the same size, so a load
    that does not change teaches nothing. It depends on measured times only, not on the curve.
    """

    def __init__(self) -> None:
        self._usual: dict[int, _Usual] = {}  # keys: buckets of sizes
        self._products = 0.0  # decayed sum of deviations of requests times deviations of seconds
        self._squares = 0.0  # decayed sum of squared deviations of requests

    @property
    def seconds(self) -> float:
        """Seconds for each request after the first, on a machine with a slowness of 1."""
        return max(self._products / self._squares, 0.0) if self._squares else 0.0

    def observe(self, size: int, others: int, seconds: float) -> None:
        """Learn from a call with `others` requests after the first."""
        usual = self._usual.setdefault(bucket_of(size), _Usual(others, seconds))
        longest = max(MAX_JUMP, (1 + others) / (1 + usual.others)) * usual.seconds
        seconds = min(max(seconds, usual.seconds / MAX_JUMP), longest)
        more, slower = others - usual.others, seconds - usual.seconds
        if abs(more) >= 0.5:  # a smaller difference is the tail of the moving average
            # Small deviations among many requests say little, and so replace little.
            decay = 1 - OWN_SMOOTHING * (more / (others + usual.others)) ** 2
            self._products = decay * self._products + more * slower
            self._squares = decay * self._squares + more * more
        usual.others += SMOOTHING * more
        usual.seconds += SMOOTHING * slower


class CallCosts:
    """Seconds of one kind of call: a curve by size, and a term for each request after the first.

    A request after the first never costs more than a call of the same size.
    """

    def __init__(self, speed: Speed | None = None, same_speed_steps: float = math.inf) -> None:
        """Start without costs; `speed` is the speed of the machine.

        same_speed_steps: number of steps since the last measurement of the speed after which half
        of the unexpected seconds is attributed to the machine; inf: always all of it to the size.
        """
        self._speed = speed or Speed()
        self._same_speed_steps = same_speed_steps
        self.curve = CostCurve(self._speed)
        self._term = RequestTerm()

    @property
    def request_seconds(self) -> float:
        """Seconds for each request after the first."""
        return self._term.seconds * self._speed.slowness

    def seconds(self, size: float, num_requests: float) -> float:
        """Expected seconds of a call of `size` rows or positions for `num_requests` requests."""
        [seconds] = self.seconds_of([size], num_requests)
        return seconds

    def seconds_of(self, sizes: Iterable[float], num_requests: float) -> list[float]:
        """Expected seconds of calls of several sizes."""
        each, others = self.request_seconds, max(num_requests - 1, 0)
        return [seconds + others * min(each, seconds) for seconds in self.curve.at_each(sizes)]

    def observe(
        self,
        size: int,
        num_requests: int,
        seconds: float,
        *,
        is_plain: bool = False,
        reads: bool = False,
    ) -> None:
        """Learn from a call: the curve gets what the term of its requests does not explain.

        is_plain: the call is a plain step, from which the machine's slowness was learnt already.
        reads: most of its seconds may be for prompts, so the term of requests learns nothing.
        """
        others = num_requests - 1
        if not reads:
            self._term.observe(size, others, seconds / self._speed.slowness)
        seconds = max(seconds - self.request_seconds * others, seconds / num_requests)
        if is_plain:
            self.curve.observe(size, seconds, _PLAIN_SHARE)
        else:
            share = self._speed.size_share(self._same_speed_steps)
            self._speed.follow((1 - share) * self.curve.observe(size, seconds, share))


class Interference:
    """How much draft calls of one drafter and concurrent verifier calls slow each other down.

    Calls that were shorter than expected count, too. An average of only the longer calls would be
    above 0 because of noise, and would keep a drafter idle that slows no verification down.
    """

    def __init__(self, assumed: float) -> None:
        self._lost = assumed / (1 + assumed)  # seconds lost in each second in which both run
        self._num_measured = 4.0  # the assumed value counts as this many measurements

    @property
    def value(self) -> float:
        """Seconds by which one second of either call lengthens the other: 0 to 1.

        0 on separate hardware, about 1 on one shared processor.
        """
        lost = min(max(self._lost, 0.0), 0.5)
        return lost / (1 - lost)

    def set(self, value: float) -> None:
        """Begin with a value that was measured while no requests ran."""
        self._lost, self._num_measured = value / (1 + value), 1 / OWN_SMOOTHING

    def observe(self, seconds: float, expected: float, beside: float) -> None:
        """Learn from a verification of `seconds`, of which `beside` overlapped with drafting."""
        if beside <= 0 or expected <= 0:
            return
        share = beside / max(seconds, beside)  # short overlaps say little
        self._num_measured += share
        rate = share * max(OWN_SMOOTHING, 1 / self._num_measured)
        self._lost += rate * (min(max((seconds - expected) / beside, -1.0), 1.0) - self._lost)

    def lost_seconds(self, beside: float) -> float:
        """Seconds that a call loses by overlapping with the other role for `beside` seconds."""
        return beside * self.value / (1 + self.value)

    def ends(self, one: float, other: float) -> tuple[float, float]:
        """Return when two calls that begin together end, given the seconds that each takes alone.

        While both run, each progresses at 1 / (1 + value) of its speed.
        """
        shorter = self.value * min(one, other)
        return one + shorter, other + shorter


class DraftCosts:
    """The costs of one drafter's drafts."""

    def __init__(self, interference: float, speed: Speed | None = None) -> None:
        """Start without costs; `speed` is the speed of the machine."""
        self._speed = speed = speed or Speed()
        self.calls = CallCosts(speed)  # size: drafted positions
        self.reading = CostCurve(speed)  # seconds added to a call; size: prompt tokens it reads
        self._overhead_seconds = 0.0  # on a machine with a slowness of 1
        self.interference = Interference(interference)

    @property
    def is_known(self) -> bool:
        return self.calls.curve.is_known

    @property
    def overhead_seconds(self) -> float:
        """Seconds of a drafted step that are neither drafting nor verification."""
        return self._overhead_seconds * self._speed.slowness

    def seconds(self, num_positions: float, num_requests: float, num_unread: int = 0) -> float:
        """Expected seconds of a call that also reads `num_unread` prompt tokens."""
        seconds = self.calls.seconds(num_positions, num_requests)
        return seconds + self.reading_seconds(num_unread, num_positions, num_requests)

    def reading_seconds(
        self, num_unread: int, num_positions: float = 1, num_requests: float = 1
    ) -> float:
        """Expected seconds that reading `num_unread` prompt tokens adds to a call."""
        if not num_unread:
            return 0.0
        if self.reading.is_known:
            return self.reading.at(num_unread)
        seconds = self.calls.seconds(num_positions + num_unread, num_requests)
        return seconds - self.calls.seconds(num_positions, num_requests)

    def observe(
        self, num_positions: int, num_requests: int, num_unread: int, seconds: float
    ) -> None:
        """Learn from a call, given its seconds without a concurrent verification."""
        if not num_unread:
            self.calls.observe(num_positions, num_requests, seconds)
        elif self.is_known:
            without = self.seconds(num_positions, num_requests)
            self.reading.observe(num_unread, max(seconds - without, 0.0))

    def observe_overhead(self, seconds: float) -> None:
        """Learn from a drafted step: its seconds that are neither drafting nor verification."""
        seconds = max(seconds, 0.0) / self._speed.slowness
        self._overhead_seconds += SMOOTHING * (seconds - self._overhead_seconds)


class CostModel:
    """The costs of one coordinator's calls."""

    def __init__(
        self, drafters: Iterable[str], interference: float, same_speed_steps: float = math.inf
    ) -> None:
        """`interference`: the value assumed until it is measured; see CallCosts for the last."""
        self._speed = speed = Speed()
        # size: rows, which are tokens to read, roots and nodes
        self.verification = CallCosts(speed, same_speed_steps)
        self.plain = CostCurve(speed)  # verdict to verdict without drafts; size: requests
        self.drafters = {name: DraftCosts(interference, speed) for name in drafters}

    def verify_seconds(self, num_rows: float, num_requests: float) -> float:
        """Expected seconds of a verification without a concurrent draft call."""
        return self.verification.seconds(num_rows, num_requests)

    def num_rows_within(self, seconds: float, most: int) -> int:
        """Return the largest number of rows, up to `most`, that adds `seconds` to a verification.

        Returns at least _LEAST_ROWS: with fewer, many short prompts would all be delayed.
        """
        curve = self.verification.curve
        if not curve.is_known:
            return most
        seconds += curve.at(1)
        if curve.at(most) <= seconds:
            return most
        return max(bisect_right(range(most), seconds, key=curve.at), min(_LEAST_ROWS, most))

    def plain_seconds(self, num_requests: int) -> float:
        """Expected seconds from verdict to verdict if none of these requests drafts."""
        if self.plain.is_known_near(num_requests):
            return self.plain.at(num_requests)
        return max(self.verify_seconds(num_requests, num_requests), MIN_SECONDS)

    def lost_seconds(self, beside: Mapping[str, float]) -> float:
        """Seconds by which concurrent draft calls lengthen a verification, by drafter."""
        return sum([self.drafters[name].interference.lost_seconds(t) for name, t in beside.items()])

    def surprise(
        self, num_rows: int, num_requests: int, seconds: float, beside: Mapping[str, float]
    ) -> float:
        """Return the log ratio of a verification's actual to expected seconds; see below."""
        expected = self.verify_seconds(num_rows, num_requests)
        alone = max(seconds - self.lost_seconds(beside), MIN_SECONDS)
        return math.log(alone / expected) if expected > 0 else 0.0

    def observe_verification(
        self,
        num_rows: int,
        num_requests: int,
        seconds: float,
        beside: Mapping[str, float],
        *,
        is_plain: bool = False,
        reads: bool = False,
    ) -> None:
        """Learn from a verification; `beside`: its seconds with a draft call, by drafter.

        is_plain: whether it is one of plain decoding, which reveals the machine's slowness. reads:
        whether it reads prompts.
        """
        expected = self.verify_seconds(num_rows, num_requests)
        without = seconds - self.lost_seconds(beside)
        for name, together in beside.items():
            own = self.drafters[name].interference
            own.observe(without + own.lost_seconds(together), expected, together)
        self._speed.num_unmeasured += not is_plain
        seconds = max(seconds - self.lost_seconds(beside), 0.0)  # by what has just been learnt
        if is_plain:
            if self.verification.curve.is_known_near(num_requests):  # else there is no prediction
                self._speed.expect(num_requests, self.verify_seconds(num_requests, num_requests))
            self._speed.observe(num_requests, seconds)
        elif num_rows == num_requests and not beside:
            self._speed.expect(num_requests, seconds, _MEASURED_COUNT)
        self.verification.observe(num_rows, num_requests, seconds, is_plain=is_plain, reads=reads)
