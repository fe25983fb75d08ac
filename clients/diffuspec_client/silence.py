"""Silence: steps that are not reported to a server, since it would have no drafts for them."""

from __future__ import annotations

from collections.abc import Iterable

MAX_SILENT_STEPS = 64


class Silence:
    """Counts the steps that are not reported. It ends as soon as there are other requests."""

    def __init__(self, num_steps: int = 0, request_ids: Iterable[str] = ()) -> None:
        """The next steps of these requests are left out; 0 steps: the next one is reported."""
        self.num_steps = 0  # steps left out since the last answer
        self._num_left = min(num_steps, MAX_SILENT_STEPS)
        self._request_ids = frozenset(request_ids)

    def covers(self, request_ids: Iterable[str]) -> bool:
        """Whether a step of these requests is left out; it is counted if so."""
        if not self._num_left or self._request_ids != {*request_ids}:
            self._num_left = 0
            return False
        self._num_left -= 1
        self.num_steps += 1
        return True
