"""Seconds as a function of a size, from measurements."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise

_BUCKET_STARTS = (1, 2, 5, 9, 13, 17, 21, 25, 29, 33, 41, 49, 65, 97, 129, 193, 257, 513, 1025)
SMOOTHING = 0.1  # of moving averages: the share of a new measurement
_MAX_JUMP = 3.0  # clip outliers to 3x the mean, and the mean to 3x the measurement
_MIN_SECONDS = 1e-9  # of any size: callers divide by costs
_MIN_MOVE = 0.02  # share by which a point must move before the table is made again
_MIN_SIZES = 32  # of a table
_DEFAULT_SLOPE = 0.02  # cost of an additional token, while only one size was measured


@dataclass(slots=True)
class _Point:
    """Moving averages of the sizes and times measured in one bucket."""

    tokens: float
    seconds: float
    count: int = 1
    tabled: tuple[float, float] = (0.0, 0.0)  # tokens and seconds when the table was made

    def observe(self, num_tokens: int, seconds: float) -> bool:
        """Return whether the averages are now far from those in the table."""
        self.count += 1
        rate = max(SMOOTHING, 1 / self.count)
        if self.seconds > 0:
            seconds = min(seconds, self.seconds * _MAX_JUMP)
            self.seconds = min(self.seconds, seconds * _MAX_JUMP)
        self.tokens += rate * (num_tokens - self.tokens)
        self.seconds += rate * (seconds - self.seconds)
        tokens, seconds = self.tabled
        has_moved = abs(self.seconds - seconds) > _MIN_MOVE * seconds
        return has_moved or abs(self.tokens - tokens) > _MIN_MOVE * tokens


class CostCurve:
    """Seconds as a rising, piecewise linear function of a number of tokens.

    It runs through the measured points. Before the first and after the last it continues with the
    slope between these two, never below a tenth of the first point's seconds.
    """

    def __init__(self) -> None:
        self._points: dict[int, _Point] = {}  # by bucket, ascending
        self._table: list[float] = []  # seconds by size

    @property
    def is_known(self) -> bool:
        return bool(self._points)

    @property
    def largest(self) -> int:
        """About the largest size that was measured; 0 before any measurement."""
        return round(next(reversed(self._points.values())).tokens) if self._points else 0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Add one measurement."""
        bucket = bisect_right(_BUCKET_STARTS, num_tokens)
        point = self._points.get(bucket)
        if point is None:
            point = _Point(num_tokens, seconds)
            self._points = dict(sorted([*self._points.items(), (bucket, point)]))
            self._table = []
        elif point.observe(num_tokens, seconds):
            self._table = []

    def at(self, num_tokens: int) -> float:
        """Return the seconds for one size; 0 before any measurement."""
        return self.up_to(num_tokens)[num_tokens]

    def up_to(self, num_tokens: int) -> Sequence[float]:
        """Return the seconds for 0 tokens, 1 token and so on, up to `num_tokens` or beyond.

        All are 0 before any measurement.
        """
        if num_tokens >= len(self._table):
            self._table = self._tabulate(max(_MIN_SIZES, num_tokens * 5 // 4 + 1))
        return self._table

    def _tabulate(self, num_sizes: int) -> list[float]:
        """Return the seconds for `num_sizes` sizes, from 0 on, by the present points."""
        if not self._points:
            return [0.0] * num_sizes
        corners: list[tuple[float, float]] = []
        highest = _MIN_SECONDS
        for point in self._points.values():
            tokens, seconds = point.tabled = point.tokens, point.seconds
            highest = max(highest, seconds)
            corners.append((tokens, highest))
        first, lowest = corners[0]
        between = [(b - a) / (y - x) for (x, a), (y, b) in pairwise(corners)]
        outside = (highest - lowest) / (tokens - first) if between else _DEFAULT_SLOPE * lowest
        flat_until = first - 0.9 * lowest / outside if outside else 0.0
        table = [0.1 * lowest] * min(max(math.ceil(flat_until), 0), num_sizes)
        ends, slopes = [size for size, _ in corners], [outside, *between, outside]
        lines = zip([corners[0], *corners], slopes, [*ends, num_sizes], strict=True)
        for (start, seconds), slope, end in lines:
            here, stop = len(table), min(math.ceil(end), num_sizes)
            if here < stop:
                table += islice(count(seconds + slope * (here - start), slope), stop - here)
        return table
