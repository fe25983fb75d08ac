"""Interference: how much longer an engine's steps are while drafts are made."""

from __future__ import annotations

_ASSUMED = 4  # weight, in measurements, of the assumption that drafter and engine share nothing
# least share of a step that draft calls must overlap; below it, noise dominates
_LEAST_SHARE = 0.05
_MAX_SLOWER = 0.5  # largest change of a step's time, per second of drafting, that counts
_SMOOTHING = 0.025


class Interference:
    """Seconds by which a second of concurrent drafting lengthens a step.

    Steps that were shorter than expected count, too: an average of the longer steps alone would be
    positive because of noise, and would idle a drafter that does not interfere at all.
    """

    def __init__(self) -> None:
        self._slower = 0.0  # seconds lost per second in which both were busy
        self._num_measured = _ASSUMED

    @property
    def value(self) -> float:
        slower = max(self._slower, 0.0)
        return slower / (1 - slower)

    def observe(self, seconds: float, expected: float, together: float) -> None:
        """Learn from a step of `seconds`, for `together` of which draft calls were running."""
        if together <= _LEAST_SHARE * seconds or expected <= 0:
            return
        self._num_measured += 1
        rate = max(_SMOOTHING, 1 / self._num_measured)
        slower = min(max((seconds - expected) / together, -_MAX_SLOWER), _MAX_SLOWER)
        self._slower += rate * (slower - self._slower)
