"""Silence: steps that are not reported to a server, because it would have no drafts for them."""

from __future__ import annotations

from collections.abc import Iterable

MAX_SILENT_STEPS = 64


class Silence:
    """Counts unreported steps. Ends as soon as the set of requests changes."""

    def __init__(self, num_steps: int = 0, request_ids: Iterable[str] = ()) -> None:
        """The next `num_steps` steps of these requests are not reported; 0: the next one is."""
        self.num_steps = 0  # unreported steps since the last answer
        self._num_left = min(num_steps, MAX_SILENT_STEPS)
        self._request_ids = frozenset(request_ids)

    def covers(self, request_ids: Iterable[str]) -> bool:
        """Return whether a step of these requests goes unreported; if so, count it."""
        if not self._num_left or self._request_ids != {*request_ids}:
            self._num_left = 0
            return False
        self._num_left -= 1
        self.num_steps += 1
        return True
