"""Cost curves: seconds by the size of a call, on a machine that gets slower and faster."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

# Sizes of about the same cost: single rows first, then wider and wider ranges.
_BUCKET_STARTS = (
    *(1, 2, 3, 5, 7, 9, 13, 17, 21, 25, 33, 41, 49, 65, 97, 129, 193, 257),
    *(2**power + 1 for power in range(9, 21)),
)
SMOOTHING = 0.1  # weight of a new measurement: the mean of about the last twenty
OWN_SMOOTHING = 0.02  # its weight in what its size costs in comparison with others
MAX_JUMP = 3.0  # times the mean, which outliers count as: another process had the processor
_MAX_WEIGHT = 50  # measurements of a size that count against those of others
_WELL_KNOWN = 20  # measurements of a size that is then well known
MIN_SECONDS = 1e-9  # No call takes less: callers divide by costs.


@dataclass(slots=True)
class Speed:
    """How slow a machine is: a factor of all that is measured on it."""

    slowness: float = 1.0
    confidence: float = 0.0  # from 0 to 1: whether sizes that are well known were measured lately
    num_unmeasured: int = 0  # steps since the latest measurement

    def observe(self, surprise: float, count: int) -> None:
        """Follow a call whose size had been measured `count` times.

        `surprise` is the log ratio of its seconds to those expected, as far as the size does not
        explain it. It stands for the steps since the latest measurement, too.
        """
        weight = 1 - (1 - SMOOTHING) ** (1 + self.num_unmeasured)
        self.slowness *= math.exp(weight * surprise)
        self.num_unmeasured = 0
        self.confidence += SMOOTHING * (min(count / _WELL_KNOWN, 1.0) - self.confidence)


@dataclass(slots=True)
class _Point:
    """What a size takes on a machine with a slowness of 1."""

    size: int  # the first that was measured in its bucket
    seconds: float
    count: int = 1  # measurements in the bucket
    drawn: float = 0.0  # seconds in the present lines


class CostCurve:
    """Seconds as a rising, piecewise linear function of a size.

    It runs through the measured points. Before the first it continues with the slope between that
    and the last, never below a tenth of the first point's seconds; after the last it rises at least
    half as fast as in proportion to the size.
    """

    def __init__(self, speed: Speed | None = None) -> None:
        """`speed` is the machine's."""
        self._speed = speed or Speed()
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
        """Add one measurement that tells nothing of the machine's speed."""
        seconds, bucket, point = self._find(size, seconds)
        if point is None:
            self._add(bucket, size, seconds)
            return
        if point.count == 1 and seconds < point.seconds:  # The first call may have allocated.
            self._move(point, math.log(seconds / point.seconds))
        else:
            rate = max(SMOOTHING, 1 / point.count)
            self._move(point, rate * self._surprise(point, size, seconds))

    def explain(self, size: int, seconds: float) -> tuple[float, int]:
        """Add one measurement, of a whole call.

        Returns the log ratio of its seconds to those expected, as far as it is put down to the
        machine, and how often the size was measured before. It is put down to the size if that is
        new while others were as expected. Where the machine is blamed wrongly, other costs are
        wrong until they are measured; where the size is, their ratio to it is, and what seems too
        dear may never be measured.
        """
        seconds, bucket, point = self._find(size, seconds)
        if point is None:
            return self._add_between(bucket, size, seconds), 0
        surprise, count = self._surprise(point, size, seconds), point.count
        share = self._speed.confidence / count
        self._move(point, max(share, OWN_SMOOTHING) * surprise)
        return (1 - share) * surprise, count

    def _find(self, size: int, seconds: float) -> tuple[float, int, _Point | None]:
        """Return the seconds at a slowness of 1, the size's bucket, and its point if it has one."""
        bucket = bisect_right(_BUCKET_STARTS, size)
        point = self._points.get(bucket)
        is_known = point is not None and point.seconds > MIN_SECONDS
        seconds = max(seconds / self._speed.slowness, MIN_SECONDS)
        return seconds, bucket, point if is_known else None

    def _surprise(self, point: _Point, size: int, seconds: float) -> float:
        return _surprise(seconds, point.seconds * self.at(size) / self.at(point.size))

    def _move(self, point: _Point, log_ratio: float) -> None:
        point.seconds *= math.exp(log_ratio)
        point.count += 1
        is_doubled = not point.count & (point.count - 1)  # its weight, if it is pooled
        if is_doubled or abs(point.seconds - point.drawn) > 0.02 * point.drawn:
            self._lines = []

    def _add(self, bucket: int, size: int, seconds: float) -> None:
        self._points[bucket] = _Point(size, seconds)
        self._points = dict(sorted(self._points.items()))
        self._lines = []

    def _add_between(self, bucket: int, size: int, seconds: float) -> float:
        """Add a point between its neighbours; return by how much it was beyond one of them.

        A size takes no less than smaller ones, and no more than larger ones.
        """
        smaller = [one.size for number, one in self._points.items() if number < bucket]
        larger = [one.size for number, one in self._points.items() if number > bucket]
        found = seconds
        if smaller:
            found = max(found, self.at(smaller[-1]) / self._speed.slowness)
        if larger:
            found = min(found, self.at(larger[0]) / self._speed.slowness)
        self._add(bucket, size, found)
        return _surprise(seconds, found)

    def at(self, size: float) -> float:
        """Seconds of one size; 0 before any measurement."""
        if not self._lines:
            self._draw()
        seconds, slope = self._lines[bisect_right(self._starts, size) - 1]
        return self._speed.slowness * (seconds + slope * size)

    def _corners(self) -> list[tuple[float, float]]:
        """Return sizes and seconds that rise: the isotonic regression of the points.

        Points that fall are pooled, each weighted by its measurements, as in PAVA.
        """
        pools: list[tuple[float, int, list[int]]] = []  # seconds, weight, sizes
        for point in self._points.values():
            size, seconds = point.size, point.seconds
            point.drawn = seconds
            weight, sizes = min(point.count, _MAX_WEIGHT), [size]
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


def _surprise(seconds: float, expected: float) -> float:
    """Return the log ratio of a time to what was expected; outliers count as MAX_JUMP times."""
    return math.log(min(max(seconds / expected, 1 / MAX_JUMP), MAX_JUMP))
