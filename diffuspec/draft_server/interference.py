"""Interference: by how much an engine's steps are longer while drafts are made."""

from __future__ import annotations

_ASSUMED = 4  # measurements as which it counts that drafter and engine share nothing
_LEAST_SHARE = 0.05  # share of a step that draft calls must overlap, or noise outweighs the loss
_MAX_SLOWER = 0.5  # most of a second of drafting by which a step counts as longer, or as shorter
_SMOOTHING = 0.025


class Interference:
    """Seconds by which one second of drafting beside it lengthens a step.

    Steps that were shorter than expected count, too. An average of the longer steps alone would be
    above 0 for noise, and would keep a drafter idle that disturbs nobody.
    """

    def __init__(self) -> None:
        self._slower = 0.0  # seconds lost of each second with both at work
        self._num_measured = _ASSUMED

    @property
    def value(self) -> float:
        slower = max(self._slower, 0.0)
        return slower / (1 - slower)

    def observe(self, seconds: float, expected: float, together: float) -> None:
        """Learn from a step that took `seconds`, `together` of them beside draft calls."""
        if together <= _LEAST_SHARE * seconds or expected <= 0:
            return
        self._num_measured += 1
        rate = max(_SMOOTHING, 1 / self._num_measured)
        slower = min(max((seconds - expected) / together, -_MAX_SLOWER), _MAX_SLOWER)
        self._slower += rate * (slower - self._slower)
