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

from diffuspec.adl.cost_curve import (
    MAX_JUMP,
    MIN_SECONDS,
    OWN_SMOOTHING,
    SMOOTHING,
    CostCurve,
    Speed,
)

_LEAST_ROWS = 64


class CallCosts:
    """Seconds of one kind of call: a curve by size, and a term for each request after the first."""

    def __init__(self, speed: Speed | None = None) -> None:
        """Start without costs; `speed` is the speed of the machine."""
        self._speed = speed or Speed()
        self.curve = CostCurve(self._speed)
        self._request_seconds = 0.0  # seconds on a machine with a slowness of 1
        self._num_batches = 0

    @property
    def request_seconds(self) -> float:
        """Seconds for each request after the first."""
        return self._request_seconds * self._speed.slowness

    def seconds(self, size: float, num_requests: float) -> float:
        """Expected seconds of a call of `size` rows or positions for `num_requests` requests."""
        return self.curve.at(size) + self.request_seconds * max(num_requests - 1, 0)

    def seconds_of(self, sizes: Iterable[float], num_requests: float) -> list[float]:
        """Expected seconds of calls of several sizes."""
        return self.curve.at_each(sizes, self.request_seconds * max(num_requests - 1, 0))

    def observe(
        self,
        size: int,
        num_requests: int,
        seconds: float,
        *,
        is_plain: bool = False,
        reads: bool = False,
    ) -> None:
        """Learn from a call. The request term explains what the curve, if known there, does not.

        is_plain: whether it is a step of plain decoding, which reveals the machine's slowness.
        reads: whether most of its time may be spent on prompts, which says little about requests.
        """
        seconds = self._without_requests(size, num_requests - 1, seconds, reads)
        if is_plain:
            self._speed.observe(self.curve.observe(size, seconds, share=OWN_SMOOTHING))
        else:
            self._observe_size(size, seconds)

    def _without_requests(self, size: int, others: int, seconds: float, reads: bool) -> float:
        """Learn the term of `others` requests after the first; return the seconds of the size."""
        if others and self.curve.is_known_near(size) and not reads:
            self._num_batches += 1
            expected = self.seconds(size, others + 1)
            rate = max(OWN_SMOOTHING, 1 / self._num_batches**2)
            seconds = min(seconds, expected * MAX_JUMP)
            error = rate * (seconds - expected) / others / self._speed.slowness
            self._request_seconds = max(self._request_seconds + error, 0.0)
        return max(seconds - self.request_seconds * others, 0.0)

    def _observe_size(self, size: int, seconds: float) -> None:
        """Learn from a call that reveals nothing about the machine's speed."""
        self.curve.observe(size, seconds)


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

    def __init__(self, drafters: Iterable[str], interference: float) -> None:
        """`interference`: the value assumed until it is measured."""
        self._speed = speed = Speed()
        # size: rows, which are tokens to read, roots and nodes
        self.verification = CallCosts(speed)
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
        self.verification.observe(num_rows, num_requests, seconds, is_plain=is_plain, reads=reads)
