"""Losses: how often a worker was lost while it worked on a request, and what follows.

A request that makes its workers die would take one worker after the other, and all requests beside
it. Most requests in flight at a loss are innocent. So a request that was in flight at two losses is
tried once more, alone: nothing else is in flight at its workers. At the third loss it ends.
A request that waited in a queue was not in flight.

Losses with much progress between them are not the request's doing, and are not counted together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from diffuspec.core.errors import FatalRequestError

# Called when the request that a task serves leaves the queue: the process that counts its losses
# has to know that it is in flight.
on_begin: ContextVar[Callable[[], None] | None] = ContextVar("on_begin", default=None)

SUSPECT_LOSSES = 2  # losses after which a request runs alone
FATAL_LOSSES = 3  # losses after which a request ends

# Tokens of progress after which an earlier loss does not count. A request that kills its worker at
# a certain token may still gain some between two losses: outputs that were not read are lost.
_MANY_TOKENS = 256


class Losses:
    """The losses of workers at which one request was in flight, without much progress between."""

    def __init__(self, number: int = 0, num_tokens: int = 0) -> None:
        """`number`: losses so far; `num_tokens`: the request's tokens at the last of them.

        Raises FatalRequestError if these are too many.
        """
        self.number = number
        self.has_grown = False  # whether a loss was counted here
        self._num_tokens = num_tokens
        self._check("")

    @property
    def is_suspect(self) -> bool:
        """Whether the request must run alone."""
        return self.number >= SUSPECT_LOSSES

    def add(self, reason: str, num_tokens: int = 0) -> None:
        """Count a loss, at which the request had this many tokens.

        Raises FatalRequestError if it is not to be tried again.
        """
        if num_tokens - self._num_tokens >= _MANY_TOKENS:
            self.number = 0
        self.number, self._num_tokens, self.has_grown = self.number + 1, num_tokens, True
        self._check(reason)

    def _check(self, reason: str) -> None:
        if self.number >= FATAL_LOSSES:
            raise FatalRequestError(
                f"workers were lost {self.number} times while they worked on this request, at last "
                f"while it ran alone; do not retry it{reason and f': {reason}'}"
            )
