"""Requests at which draft servers die: they get no drafts any more."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

logger = logging.getLogger(__name__)

_MAX_LOSSES = 2  # servers lost at a request, after which it is not drafted for


class Losses:
    """How many servers were lost while they may have drafted for a request."""

    def __init__(self) -> None:
        self._counts = Counter[str]()
        self._reported: Sequence[str] = ()  # requests of the last step, for which a server drafts
        self._num_seen = 0  # losses of the connection that are counted

    def report(self, request_ids: Sequence[str]) -> None:
        """Record which requests a server drafts for from now on."""
        self._reported = request_ids

    def count(self, num_losses: int) -> None:
        """Count a loss for the reported requests if the connection has had another one."""
        if num_losses > self._num_seen:
            self._counts.update(self._reported)
            barred = [name for name in self._reported if self._counts[name] == _MAX_LOSSES]
            if barred:
                message = "diffuspec: draft servers were lost at %d requests: no drafts for them"
                logger.warning(message, len(barred))
        self._num_seen, self._reported = num_losses, ()

    def bars(self, request_id: str) -> bool:
        """Return whether a request must not be drafted for."""
        return bool(self._counts) and self._counts[request_id] >= _MAX_LOSSES

    def end(self, request_ids: Iterable[str]) -> None:
        """Forget requests that have ended."""
        if self._counts:
            for request_id in request_ids:
                self._counts.pop(request_id, None)
