"""Gains: which length of a pre-draft is worth its price."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Gains:
    """Tokens gained by drafts of several lengths, as the concave hull over their positions."""

    def __init__(self, lengths: Sequence[int], gains: Sequence[float]) -> None:
        """A draft of length n takes n + 1 positions. `lengths` ascend."""
        hull = [(0, 0.0, 0.0)]  # positions, gain, minus the slope up to here
        for length, gain in zip(lengths, gains, strict=True):
            point = length + 1
            if gain <= hull[-1][1]:
                continue
            while True:
                before, there, slope = hull[-1]
                new = (there - gain) / (point - before)
                if len(hull) == 1 or new >= slope:
                    break
                hull.pop()
            hull.append((point, gain, new))
        self._hull = hull
        self._slopes = [one[2] for one in hull[1:]]

    def at(self, price: float, room: int) -> tuple[int, float]:
        """Return the best length at a price of a position in tokens, and what it gains."""
        place = bisect_right(self._slopes, -price)
        while place and self._hull[place][0] > room + 1:
            place -= 1
        positions, gain, _ = self._hull[place]
        return max(positions - 1, 0), gain
