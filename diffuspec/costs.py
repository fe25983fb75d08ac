"""What drafting and verifying cost on this hardware, learnt from the steps themselves.

Everything a role's answer takes is in these times: the forward, the wait for the worker and the
way there and back. Nothing is known beforehand; a curve with no point yet says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_BUCKET_STARTS = (1, 2, 5, 9, 13, 17, 21, 25, 29, 33, 41, 49, 65, 97, 129, 193, 257, 513, 1025)
_SMOOTHING = 0.1
_MAX_JUMP = 3.0  # an observation counts as at most so many times the mean: hiccups are no news
_DEFAULT_SLOPE = 0.02  # of the cost per additional token, while only one size has been seen


class CostCurve:
    """Seconds as a rising, piecewise linear function of a number of tokens."""

    def __init__(self) -> None:
        self._points: dict[int, tuple[float, float]] = {}  # bucket -> (mean tokens, mean seconds)
        self._table: NDArray[np.float64] | None = None

    @property
    def is_known(self) -> bool:
        return bool(self._points)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from one measurement."""
        bucket = int(np.searchsorted(_BUCKET_STARTS, num_tokens, side="right"))
        self._table = None
        if bucket not in self._points:
            self._points[bucket] = (float(num_tokens), seconds)
            return
        tokens, mean = self._points[bucket]
        seconds = min(seconds, mean * _MAX_JUMP)
        self._points[bucket] = (
            tokens + _SMOOTHING * (num_tokens - tokens),
            mean + _SMOOTHING * (seconds - mean),
        )

    def seconds(self, max_tokens: int) -> NDArray[np.float64]:
        """Return the seconds for 0, 1, ... max_tokens tokens; zeros before any observation."""
        if self._table is None or len(self._table) <= max_tokens:
            self._table = self._tabulate(max(max_tokens, 64))
        return self._table[: max_tokens + 1]

    def _tabulate(self, max_tokens: int) -> NDArray[np.float64]:
        if not self._points:
            return np.zeros(max_tokens + 1)
        known = sorted(self._points.values())
        tokens = np.array([point[0] for point in known])
        seconds = np.maximum.accumulate([point[1] for point in known])
        if len(known) == 1:
            slope = _DEFAULT_SLOPE * seconds[0]
        else:
            slope = (seconds[-1] - seconds[0]) / (tokens[-1] - tokens[0])
        sizes = np.arange(max_tokens + 1)
        beyond = np.clip(sizes - tokens[-1], 0, None) - np.clip(tokens[0] - sizes, 0, None)
        table: NDArray[np.float64] = np.interp(sizes, tokens, seconds) + slope * beyond
        return np.maximum(table, seconds[0] * 0.1)


@dataclass(slots=True)
class StepCosts:
    """The cost of a step's parts, and what else is in the batch. One per coordinator.

    other_rows and other_tokens are what the rest of a batch fed and committed lately, so that a
    request in a full batch drafts less than one that is alone.
    """

    verify: CostCurve = field(default_factory=CostCurve)  # by rows fed to the target
    draft: CostCurve = field(default_factory=CostCurve)  # by masked positions of the batch
    overhead_seconds: float = 0.0
    other_rows: float = 0.0
    other_tokens: float = 0.0

    def observe_verify(
        self, num_rows: int, num_requests: int, num_tokens: int, seconds: float
    ) -> None:
        """Learn from one verified batch: rows fed, requests in it, tokens committed by it."""
        self.verify.observe(num_rows, seconds)
        others = (num_requests - 1) / num_requests
        self.other_rows += _SMOOTHING * (num_rows * others - self.other_rows)
        self.other_tokens += _SMOOTHING * (num_tokens * others - self.other_tokens)

    def observe_overhead(self, seconds: float) -> None:
        """Learn the time of a step that is neither drafting nor verification."""
        self.overhead_seconds += _SMOOTHING * (seconds - self.overhead_seconds)
