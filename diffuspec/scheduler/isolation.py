"""Isolation: a request at which workers were lost repeatedly is alone in their calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from diffuspec.scheduler.request import Request


class Isolation:
    """Which requests may be in calls: all of them, or a suspect alone until it ends."""

    def __init__(self) -> None:
        self._alone: Request | None = None

    def choose(
        self, ready: Collection[Request], in_calls: Callable[[], Iterable[Request]]
    ) -> Sequence[Request]:
        """Return the ready requests that may be in calls now, given those that are in calls.

        Suspects wait until no other request can go on. Then the first runs alone until it ends, or
        waits for its reader; the next one follows.
        """
        if self._alone is not None and not self._alone.is_finished:
            if self._alone in ready:
                return [self._alone]
            if self._alone in in_calls():
                return []
        self._alone = None
        others = [request for request in ready if not request.losses.is_suspect]
        if len(others) == len(ready) or others or any(in_calls()):
            return others
        self._alone = next(iter(ready))
        return [self._alone]
