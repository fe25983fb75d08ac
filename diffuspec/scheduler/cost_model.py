"""The cost model: seconds of a verification and of a draft call, and how they slow each other.

A measured time is that of a role's whole answer: the forward, waiting for the worker and transport.
The model is profiled when an engine starts, and follows moving averages while it decodes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

# Sizes of about the same cost: single rows first, then wider and wider ranges.
_BUCKET_STARTS = (
    *(1, 2, 3, 5, 7, 9, 13, 17, 21, 25, 33, 41, 49, 65, 97, 129, 193, 257),
    *(2**power + 1 for power in range(9, 21)),
)
_SMOOTHING = 0.1  # weight of a new measurement: the mean of about the last twenty
MAX_JUMP = 3.0  # times the mean, which outliers count as: another process had the processor
# Of the term for each further request of a batch: where it is so high that all calls are of single
# requests, it halves in 350 of them, and batches are tried again.
_KEPT_BY_SINGLE_CALLS = 0.998
_LEAST_ROWS = 64
_MIN_SECONDS = 1e-9  # No call takes less: callers divide by costs.


@dataclass(slots=True)
class _Point:
    """Moving averages of the sizes and times measured in one bucket."""

    size: float
    seconds: float
    count: int = 1
    drawn: tuple[float, float] = (0.0, 0.0)  # size and seconds in the present lines

    def observe(self, size: int, seconds: float) -> bool:
        """Return whether the averages are now 2 % away from those in the lines."""
        self.count += 1
        rate = max(_SMOOTHING, 1 / self.count)
        if self.seconds > 0:
            seconds = min(seconds, self.seconds * MAX_JUMP)
            self.seconds = min(self.seconds, seconds * MAX_JUMP)
        self.size += rate * (size - self.size)
        self.seconds += rate * (seconds - self.seconds)
        drawn_size, drawn_seconds = self.drawn
        has_moved = abs(self.seconds - drawn_seconds) > 0.02 * drawn_seconds
        return has_moved or abs(self.size - drawn_size) > 0.02 * drawn_size


class CostCurve:
    """Seconds as a rising, piecewise linear function of a size.

    It runs through the measured points. Before the first it continues with the slope between that
    and the last, never below a tenth of the first point's seconds; after the last it rises at least
    half as fast as in proportion to the size.
    """

    def __init__(self) -> None:
        self._points: dict[int, _Point] = {}  # keys: buckets, ascending
        self._starts: list[float] = []  # sizes from which each line counts
        self._lines: list[tuple[float, float]] = []  # seconds at size 0, and for each more

    @property
    def is_known(self) -> bool:
        return bool(self._points)

    def is_known_near(self, size: int) -> bool:
        """Whether a size between half and twice this one has been measured."""
        return any([size <= 2 * one.size <= 4 * size for one in self._points.values()])

    def observe(self, size: int, seconds: float) -> None:
        """Add one measurement."""
        bucket = bisect_right(_BUCKET_STARTS, size)
        point = self._points.get(bucket)
        if point is None:
            self._points[bucket] = _Point(size, seconds)
            self._points = dict(sorted(self._points.items()))
            self._lines = []
        elif point.observe(size, seconds):
            self._lines = []

    def at(self, size: float) -> float:
        """Seconds of one size; 0 before any measurement."""
        if not self._lines:
            self._draw()
        seconds, slope = self._lines[bisect_right(self._starts, size) - 1]
        return seconds + slope * size

    def _draw(self) -> None:
        self._starts, self._lines = [0.0], [(0.0, 0.0)]
        if not self._points:
            return
        points, highest = [*self._points.values()], _MIN_SECONDS
        corners: list[tuple[float, float]] = []
        for point in points:
            size, seconds = point.drawn = point.size, point.seconds
            highest = max(highest, seconds)
            corners.append((size, highest))
        first, lowest = corners[0]
        # With a single point, 50 more rows are taken to double the time: a pass reads all weights.
        # Where it is of more than 50 already, time is taken to be in proportion to their number.
        before = lowest / max(size, 50)
        if size > first:
            before = (highest - lowest) / (size - first)
        # Larger sizes than any measured may be beyond what a processor computes in one go.
        after = max(before, highest / size / 2) if len(corners) > 1 else before
        self._starts.append(max(first - 0.9 * lowest / before, 0.0) if before else 0.0)
        self._lines = [(0.1 * lowest, 0.0), (lowest - before * first, before)]
        slopes = [(b - a) / (y - x) for (x, a), (y, b) in pairwise(corners)]
        for (size, seconds), slope in zip(corners, [*slopes, after], strict=True):
            self._starts.append(size)
            self._lines.append((seconds - slope * size, slope))


class CallCosts:
    """Seconds of one kind of call: a curve by size, and a term for each request after the first."""

    def __init__(self) -> None:
        self.curve = CostCurve()
        self.request_seconds = 0.0
        self._num_batches = 0

    def seconds(self, size: float, num_requests: float) -> float:
        """Expected seconds of a call of `size` rows or positions for `num_requests` requests."""
        return self.curve.at(size) + self.request_seconds * max(num_requests - 1, 0)

    def seconds_of(self, sizes: Iterable[float], num_requests: float) -> list[float]:
        """Expected seconds of calls of several sizes."""
        at, more = self.curve.at, self.request_seconds * max(num_requests - 1, 0)
        return [at(size) + more for size in sizes]

    def observe(self, size: int, num_requests: int, seconds: float) -> None:
        """Learn from a call. The request term explains what the curve, if known there, does not."""
        others = num_requests - 1
        if not others:
            self.request_seconds *= _KEPT_BY_SINGLE_CALLS
        elif self.curve.is_known_near(size):
            self._num_batches += 1
            expected = self.seconds(size, num_requests)
            seconds = min(seconds, expected * MAX_JUMP)
            rate = max(_SMOOTHING, 1 / self._num_batches)
            error = rate * (seconds - expected) / others
            self.request_seconds = max(self.request_seconds + error, 0.0)
        self.curve.observe(size, max(seconds - self.request_seconds * others, 0.0))


class DraftCosts:
    """What the drafts of one drafter cost."""

    def __init__(self, interference: float) -> None:
        self.calls = CallCosts()  # size: drafted positions
        self.reading = CostCurve()  # seconds added to a call; size: prompt tokens it reads
        self.overhead_seconds = 0.0  # part of a step that is neither drafting nor verification
        self.exposed_share = 1.0  # share of a draft call for which its requests wait
        self.interference = interference  # see CostModel

    @property
    def is_known(self) -> bool:
        return self.calls.curve.is_known

    def seconds(self, num_positions: float, num_requests: float, num_unread: int = 0) -> float:
        """Expected seconds of a call that also reads `num_unread` tokens of prompts."""
        seconds = self.calls.seconds(num_positions, num_requests)
        if not num_unread:
            return seconds
        if self.reading.is_known:
            return seconds + self.reading.at(num_unread)
        return self.calls.seconds(num_positions + num_unread, num_requests)

    def reading_seconds(
        self, num_unread: int, num_positions: float = 1, num_requests: float = 1
    ) -> float:
        """Expected seconds that reading `num_unread` tokens of prompts adds to a call."""
        if not num_unread:
            return 0.0
        size = num_positions, num_requests
        return self.seconds(*size, num_unread) - self.seconds(*size)

    def observe(
        self, num_positions: int, num_requests: int, num_unread: int, seconds: float
    ) -> None:
        """Learn from a call, and the seconds that it would have taken with no verification."""
        if not num_unread:
            self.calls.observe(num_positions, num_requests, seconds)
            return
        if self.is_known:
            without = self.seconds(num_positions, num_requests)
            self.reading.observe(num_unread, max(seconds - without, 0.0))

    def lost_seconds(self, beside: float) -> float:
        """Seconds by which a call is longer for those that the other role's call ran beside it."""
        return beside * self.interference / (1 + self.interference)

    def observe_wait(self, num_positions: int, num_requests: int, seconds: float) -> None:
        """Learn how long a request waited for its draft; 0 if a pre-draft was there."""
        whole = self.calls.seconds(num_positions, num_requests)
        if whole > 0:
            self.exposed_share = _moved(self.exposed_share, min(seconds / whole, MAX_JUMP))

    def observe_overhead(self, seconds: float) -> None:
        """Learn from a drafted step: its seconds that are neither drafting nor verification."""
        self.overhead_seconds = _moved(self.overhead_seconds, max(seconds, 0.0))


class CostModel:
    """What calls cost one coordinator.

    Interference is the number of seconds by which one second of a draft call beside it lengthens a
    verification, and the reverse: 0 on hardware of their own, about 1 on one shared processor.
    """

    def __init__(self, drafters: Iterable[str], interference: float) -> None:
        """`interference` is assumed until it is measured."""
        self.verification = CallCosts()  # size: rows, which are tokens to read, roots and nodes
        self.plain = CostCurve()  # verdict to verdict without drafts; size: requests
        self.plain_overhead_seconds = 0.0
        self.drafters = {name: DraftCosts(interference) for name in drafters}

    def verify_seconds(self, num_rows: float, num_requests: float) -> float:
        """Expected seconds of a verification with no draft call beside it."""
        return self.verification.seconds(num_rows, num_requests)

    def num_rows_within(self, seconds: float, most: int) -> int:
        """Return the largest number of rows, up to `most`, that adds `seconds` to a verification.

        At least _LEAST_ROWS: with fewer, many short prompts would all be read late.
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
        seconds = self.verification.seconds(num_requests, num_requests)
        return max(seconds + self.plain_overhead_seconds, _MIN_SECONDS)

    def observe_verification(
        self, num_rows: int, num_requests: int, seconds: float, beside: dict[str, float]
    ) -> None:
        """Learn from a verification; `beside`: seconds of it with a draft call, by drafter."""
        expected = self.verify_seconds(num_rows, num_requests)
        for name, together in beside.items():
            costs = self.drafters[name]
            if together > 0.05 * seconds and expected > 0:  # else noise outweighs it
                slower = min(max((seconds - expected) / together, 0.0), 0.5)
                interference = slower / (1 - slower)
                costs.interference = _moved(costs.interference, interference, _SMOOTHING / 4)
            seconds -= costs.lost_seconds(together)
        self.verification.observe(num_rows, num_requests, max(seconds, 0.0))

    def observe_plain(self, num_requests: int, seconds: float, verify_seconds: float) -> None:
        """Learn from a step without drafts of all running requests, verdict to verdict."""
        self.plain.observe(num_requests, seconds)
        overhead = max(seconds - verify_seconds, 0.0)
        self.plain_overhead_seconds = _moved(self.plain_overhead_seconds, overhead)


def together(one: float, other: float, interference: float) -> tuple[float, float]:
    """Return when two calls that begin together end, each given its seconds alone.

    While both run, each progresses at 1 / (1 + interference) of its speed.
    """
    if one <= other:
        return one * (1 + interference), other + interference * one
    return one + interference * other, other * (1 + interference)


def _moved(mean: float, value: float, rate: float = _SMOOTHING) -> float:
    return mean + rate * (value - mean)
