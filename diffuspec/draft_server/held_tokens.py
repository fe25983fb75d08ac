"""HeldTokens: the bound on the tokens that a draft server holds, which its engines share."""

from __future__ import annotations

from typing import Protocol

# A request's statistics and drafts take as much memory as this number of tokens.
TOKENS_PER_REQUEST = 1024


class Holder(Protocol):
    """The requests of one engine."""

    num_held: int  # tokens, with TOKENS_PER_REQUEST for each request

    def give_up_one(self) -> bool:
        """Stop holding the request that has been absent for the longest time, if there is one."""
        ...


class HeldTokens:
    """Bounds the tokens of all engines: those that hold the most give up requests for others."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: list[Holder] = []

    @property
    def number(self) -> int:
        """Tokens held for all engines."""
        return sum([holder.num_held for holder in self._holders])

    def add(self, holder: Holder) -> None:
        self._holders.append(holder)

    def remove(self, holder: Holder) -> None:
        self._holders.remove(holder)

    def make_room(self, holder: Holder, number: int) -> bool:
        """Return whether an engine may hold this many tokens more.

        Until there is room, the engine that would hold the most gives up requests: this engine, if
        no other holds more than it would.
        """
        while self.number + number > self._most:
            largest = max(self._holders, key=lambda other: other.num_held)
            if largest.num_held <= holder.num_held + number:
                largest = holder
            if not largest.give_up_one():
                return False
        return True
