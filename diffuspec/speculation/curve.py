"""Cost curves: the seconds of a call as a function of its size, on a machine of standard speed."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

# Sizes of similar cost: single rows first, then wider and wider ranges.
_BUCKET_STARTS = (
    *(1, 2, 3, 5, 7, 9, 13, 17, 21, 25, 33, 41, 49, 65, 97, 129, 193, 257),
    *(2**power + 1 for power in range(9, 21)),
)
SMOOTHING = 0.1  # weight of a new measurement: the mean of about the last twenty
MAX_JUMP = 3.0  # multiple of the mean to which outliers are clipped: another process was running
MIN_SECONDS = 1e-9  # no call takes less, because callers divide by costs

_MAX_COUNT = round(2 / SMOOTHING)  # measurements of a size in its mean
_REDRAWN = 0.02  # relative change of a point after which the lines are drawn again


def bucket_of(size: float) -> int:
    """Return the number of a range of sizes of similar cost."""
    return bisect_right(_BUCKET_STARTS, size)


def surprise_of(seconds: float, expected: float) -> float:
    """Return the log ratio of actual to expected seconds; outliers are clipped to MAX_JUMP."""
    return math.log(min(max(seconds / expected, 1 / MAX_JUMP), MAX_JUMP))


class _Point(NamedTuple):
    """The time of the sizes in one bucket."""

    size: int  # the first size measured
    seconds: float
    num_measured: int = 1
    drawn: float = 0.0  # seconds on the present lines


class _Lines(NamedTuple):
    """A rising, piecewise linear function."""

    starts: tuple[float, ...] = (0.0,)  # sizes at which each line starts
    values: tuple[tuple[float, float], ...] = ((0.0, 0.0),)  # seconds there, and per unit of size

    def at_each(self, sizes: Iterable[float]) -> list[float]:
        starts, values = self
        seconds = []
        for size in sizes:
            place = bisect_right(starts, size) - 1
            first, slope = values[place]
            seconds.append(first + slope * (size - starts[place]))
        return seconds


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds as a rising, piecewise linear function of a size; a frozen value.

    It passes through the measured points. Before the first point it continues with the slope
    between the first and last points, but never below a tenth of the first point's seconds; after
    the last point it rises at least half as fast as in proportion to the size.
    """

    _points: Mapping[int, _Point] = field(default_factory=dict)  # keys: buckets, ascending
    _sizes: tuple[int, ...] = ()  # sizes of the points, ascending
    _lines: _Lines = field(default_factory=_Lines)

    @property
    def is_known(self) -> bool:
        return bool(self._points)

    def is_known_near(self, size: int) -> bool:
        """Return whether a size between half and twice this one has been measured."""
        place = bisect_left(self._sizes, size / 2)
        return place < len(self._sizes) and self._sizes[place] <= 2 * size

    def at(self, size: float) -> float:
        """Seconds of one size; 0 before any measurement."""
        [seconds] = self._lines.at_each((size,))
        return seconds

    def at_each(self, sizes: Iterable[float]) -> list[float]:
        """Return the seconds for each of several sizes."""
        return self._lines.at_each(sizes)

    def observe(self, size: int, seconds: float, share: float = 1.0) -> tuple[CostCurve, float]:
        """Return the curve after a measurement, `share` of whose surprise the size explains.

        Also returns the log ratio of actual to expected seconds. A size with no other between its
        half and its double has no expected seconds before it is measured.
        """
        seconds = max(seconds, MIN_SECONDS)
        bucket = bucket_of(size)
        point = self._points.get(bucket)
        if point is None or point.seconds <= MIN_SECONDS:
            expected = max(self.at(size), MIN_SECONDS) if self.is_known_near(size) else seconds
            added = _Point(size, expected ** (1 - share) * seconds**share)
            return self._with(bucket, added, is_drawn=False), surprise_of(seconds, expected)
        if (
            point.num_measured == share == 1 and seconds < point.seconds
        ):  # the first allocated memory
            return self._with(
                bucket, point._replace(seconds=seconds, num_measured=2), is_drawn=False
            ), 0.0
        surprise = surprise_of(seconds, point.seconds * self.at(size) / self.at(point.size))
        rate = share * max(SMOOTHING, 1 / point.num_measured)
        moved = point._replace(
            seconds=point.seconds * math.exp(rate * surprise), num_measured=point.num_measured + 1
        )
        is_doubled = not moved.num_measured & (moved.num_measured - 1)  # its weight if it is pooled
        is_near = abs(moved.seconds - moved.drawn) <= _REDRAWN * moved.drawn
        return self._with(bucket, moved, is_drawn=is_near and not is_doubled), surprise

    def _with(self, bucket: int, point: _Point, *, is_drawn: bool) -> CostCurve:
        """Return the curve with another point. is_drawn: its lines are still good for it."""
        points = {**self._points, bucket: point}
        if is_drawn:
            return CostCurve(points, self._sizes, self._lines)
        ordered = {key: points[key] for key in sorted(points)}
        points = {key: point._replace(drawn=point.seconds) for key, point in ordered.items()}
        sizes = tuple([point.size for point in points.values()])
        return CostCurve(points, sizes, _drawn(points))


def _corners(points: Iterable[_Point]) -> list[tuple[float, float]]:
    """Return ascending sizes and seconds: the isotonic regression of the points.

    Descending points are pooled, as in PAVA, weighted by the measurements in their means.
    """
    pools: list[tuple[float, int, list[int]]] = []  # seconds, weight, sizes
    for point in points:
        seconds, weight, sizes = point.seconds, min(point.num_measured, _MAX_COUNT), [point.size]
        while pools and pools[-1][0] >= seconds:
            before, number, smaller = pools.pop()
            seconds = (number * before + weight * seconds) / (number + weight)
            weight, sizes = weight + number, smaller + sizes
        pools.append((max(seconds, MIN_SECONDS), weight, sizes))
    return [(size, seconds) for seconds, _, sizes in pools for size in sizes]


def _drawn(points: Mapping[int, _Point]) -> _Lines:
    corners = _corners(points.values())
    (first, lowest), (size, highest) = corners[0], corners[-1]
    # With a single point, 50 more rows are assumed to double the time, since a pass reads all
    # weights. If the point has more than 50 rows, time is assumed to be proportional to their
    # number.
    before = lowest / max(size, 50)
    if size > first:
        before = (highest - lowest) / (size - first)
    # Sizes above any measured one may exceed what a processor computes in one go.
    after = max(before, highest / size / 2) if len(corners) > 1 else before
    start = max(first - 0.9 * lowest / before, 0.0) if before else 0.0
    starts = [0.0, start, *[size for size, _ in corners]]
    slopes = [*[(b - a) / (y - x) for (x, a), (y, b) in pairwise(corners)], after]
    values = [(0.1 * lowest, 0.0), (lowest - before * (first - start), before)]
    values += [(seconds, slope) for (_, seconds), slope in zip(corners, slopes, strict=True)]
    return _Lines(tuple(starts), tuple(values))
