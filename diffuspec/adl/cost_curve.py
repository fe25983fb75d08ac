"""Cost curves: seconds by the size of a call, on a machine whose speed varies."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

# Sizes of similar cost: single rows first, then wider and wider ranges.
_BUCKET_STARTS = (
    *(1, 2, 3, 5, 7, 9, 13, 17, 21, 25, 33, 41, 49, 65, 97, 129, 193, 257),
    *(2**power + 1 for power in range(9, 21)),
)
SMOOTHING = 0.1  # weight of a new measurement: the mean of about the last twenty
OWN_SMOOTHING = 0.02  # its weight in what the machine's speed does not change: relations of costs
MAX_JUMP = 3.0  # multiple of the mean to which outliers are clipped: another process was running
_MAX_COUNT = 20  # measurements of a size in its mean: 2 / SMOOTHING
MIN_SECONDS = 1e-9  # no call takes less, because callers divide by costs


def bucket_of(size: float) -> int:
    """Return the number of a range of sizes of similar cost."""
    return bisect_right(_BUCKET_STARTS, size)


@dataclass(slots=True)
class _PlainSteps:
    """The mean time of plain steps of about one number of requests."""

    seconds: float  # on a machine with a slowness of 1
    count: int


@dataclass(slots=True)
class Speed:
    """How slow a machine is: a factor in everything that is measured on it.

    It is learnt from plain steps only, each compared with earlier ones of about as many requests.
    Costs of sizes are learnt for a given slowness: neither can take over what the other explains.
    """

    slowness: float = 1.0
    num_unmeasured: int = 0  # steps since the latest measurement
    _plain: dict[int, _PlainSteps] = field(default_factory=dict)  # keys: ranges of requests

    def expect(self, num_requests: int, seconds: float, count: int = 1) -> None:
        """Set the seconds with which steps are compared first, as the mean of `count` measurements.

        Has no effect once there is a time for about as many requests.
        """
        new = _PlainSteps(max(seconds, MIN_SECONDS) / self.slowness, count)
        self._plain.setdefault(bucket_of(num_requests), new)

    def observe(self, num_requests: int, seconds: float) -> None:
        """Learn from a plain step, which also represents the steps since the latest measurement.

        A share of the unexpected seconds is attributed to plain steps of about as many requests,
        the rest to the machine. The share falls with the number of these steps.
        """
        self.expect(num_requests, seconds)  # after this, a first step is as expected
        plain = self._plain[bucket_of(num_requests)]
        weight = 1 - (1 - SMOOTHING) ** (1 + self.num_unmeasured)
        surprise = weight * _surprise(seconds, plain.seconds * self.slowness)
        share = max(OWN_SMOOTHING, 1 / (1 + plain.count))
        plain.seconds *= math.exp(share * surprise)
        plain.count += 1
        self.slowness *= math.exp((1 - share) * surprise)
        self.num_unmeasured = 0

    def size_share(self, same_speed_steps: float) -> float:
        """Share of a drafted step's unexpected seconds that its size explains, not the machine.

        same_speed_steps: number of unmeasured steps after which the share is one half.
        """
        return 1 / (1 + self.num_unmeasured / same_speed_steps)

    def follow(self, surprise: float) -> None:
        """Learn from a drafted step whose time the machine changed by a factor exp(surprise)."""
        self.slowness *= math.exp(SMOOTHING * surprise)


@dataclass(slots=True)
class _Point:
    """The time of a size on a machine with a slowness of 1."""

    size: int  # the first size measured in its bucket
    seconds: float
    count: int = 1  # measurements in the bucket
    drawn: float = 0.0  # seconds on the present lines


class CostCurve:
    """Seconds as a rising, piecewise linear function of a size.

    It passes through the measured points. Before the first point it continues with the slope
    between the first and last points, but never below a tenth of the first point's seconds; after
    the last point it rises at least half as fast as in proportion to the size.
    """

    def __init__(self, speed: Speed | None = None) -> None:
        """Start without costs; `speed` is the speed of the machine."""
        self._speed = speed or Speed()
        self._points: dict[int, _Point] = {}  # keys: buckets, ascending
        self._sizes: list[float] = []  # sizes of the points, ascending
        self._starts: list[float] = []  # sizes at which each line starts
        # seconds where each line starts, and per unit of size from there on
        self._lines: list[tuple[float, float]] = []

    @property
    def is_known(self) -> bool:
        return bool(self._points)

    def is_known_near(self, size: int) -> bool:
        """Return whether a size between half and twice this one has been measured."""
        place = bisect_left(self._sizes, size / 2)
        return place < len(self._sizes) and self._sizes[place] <= 2 * size

    def observe(self, size: int, seconds: float, share: float = 1.0) -> float:
        """Add a measurement, and attribute `share` of what is unexpected to the size.

        Returns the log ratio of actual to expected seconds. A size with no other between its half
        and its double has no expected seconds before it is measured.
        """
        seconds = max(seconds / self._speed.slowness, MIN_SECONDS)
        bucket = bucket_of(size)
        point = self._points.get(bucket)
        if point is None or point.seconds <= MIN_SECONDS:
            is_known = self.is_known_near(size)
            expected = self.at(size) / self._speed.slowness if is_known else seconds
            self._add(bucket, size, expected ** (1 - share) * seconds**share)
            return _surprise(seconds, expected)
        if point.count == share == 1 and seconds < point.seconds:
            self._move(point, math.log(seconds / point.seconds))  # the first allocated memory
            return 0.0
        surprise = _surprise(seconds, point.seconds * self.at(size) / self.at(point.size))
        self._move(point, share * max(SMOOTHING, 1 / point.count) * surprise)
        return surprise

    def _move(self, point: _Point, log_ratio: float) -> None:
        point.seconds *= math.exp(log_ratio)
        point.count += 1
        is_doubled = not point.count & (point.count - 1)  # its weight if it is pooled
        if is_doubled or abs(point.seconds - point.drawn) > 0.02 * point.drawn:
            self._lines = []

    def _add(self, bucket: int, size: int, seconds: float) -> None:
        self._points[bucket] = _Point(size, seconds)
        self._points = dict(sorted(self._points.items()))
        self._sizes = [point.size for point in self._points.values()]
        self._lines = []

    def at(self, size: float) -> float:
        """Seconds of one size; 0 before any measurement."""
        if not self._lines:
            self._draw()
        place = bisect_right(self._starts, size) - 1
        seconds, slope = self._lines[place]
        return self._speed.slowness * (seconds + slope * (size - self._starts[place]))

    def at_each(self, sizes: Iterable[float], more: float = 0.0) -> list[float]:
        """Return the seconds for each of several sizes, plus `more`."""
        if not self._lines:
            self._draw()
        starts, lines, slowness = self._starts, self._lines, self._speed.slowness
        costs = []
        for size in sizes:
            place = bisect_right(starts, size) - 1
            seconds, slope = lines[place]
            costs.append(slowness * (seconds + slope * (size - starts[place])) + more)
        return costs

    def _corners(self) -> list[tuple[float, float]]:
        """Return ascending sizes and seconds: the isotonic regression of the points.

        Descending points are pooled, as in PAVA, weighted by the measurements in their means.
        """
        pools: list[tuple[float, int, list[int]]] = []  # seconds, weight, sizes
        for point in self._points.values():
            size, seconds = point.size, point.seconds
            point.drawn = seconds
            weight, sizes = min(point.count, _MAX_COUNT), [size]
            while pools and pools[-1][0] >= seconds:
                before, number, smaller = pools.pop()
                seconds = (number * before + weight * seconds) / (number + weight)
                weight, sizes = weight + number, smaller + sizes
            pools.append((max(seconds, MIN_SECONDS), weight, sizes))
        return [(size, seconds) for seconds, _, sizes in pools for size in sizes]

    def _draw(self) -> None:
        self._starts, self._lines = [0.0], [(0.0, 0.0)]
        if not self._points:
            return
        corners = self._corners()
        size, highest = corners[-1]
        first, lowest = corners[0]
        # With a single point, 50 more rows are assumed to double the time, since a pass reads all
        # weights. If the point has more than 50 rows, time is assumed to be proportional to their
        # number.
        before = lowest / max(size, 50)
        if size > first:
            before = (highest - lowest) / (size - first)
        # Sizes above any measured one may exceed what a processor computes in one go.
        after = max(before, highest / size / 2) if len(corners) > 1 else before
        start = max(first - 0.9 * lowest / before, 0.0) if before else 0.0
        self._starts.append(start)
        self._lines = [(0.1 * lowest, 0.0), (lowest - before * (first - start), before)]
        slopes = [(b - a) / (y - x) for (x, a), (y, b) in pairwise(corners)]
        for (size, seconds), slope in zip(corners, [*slopes, after], strict=True):
            self._starts.append(size)
            self._lines.append((seconds, slope))


def _surprise(seconds: float, expected: float) -> float:
    """Return the log ratio of actual to expected seconds; outliers are clipped to MAX_JUMP."""
    return math.log(min(max(seconds / expected, 1 / MAX_JUMP), MAX_JUMP))
