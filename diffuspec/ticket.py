"""Tickets: sequences on their way between the coordinator's loops, and the inboxes they wait in."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from diffuspec.errors import DiffuspecError
from diffuspec.sequence import Increment, Sequence


@dataclass(slots=True, eq=False)
class Ticket:
    """A sequence on its way through the loops, and where its increments go."""

    sequence: Sequence
    submitted_at: float
    increments: asyncio.Queue[Increment | DiffuspecError] = field(default_factory=asyncio.Queue)
    step_started_at: float = 0.0
    drafting_seconds: float = 0.0  # of the coming step, the way to the drafter included
    is_over: bool = False  # finished, failed, or nobody listens: dropped where a loop meets it


class Inbox:
    """Tickets waiting for a loop. take() returns all of them, at least one."""

    def __init__(self) -> None:
        self._tickets: deque[Ticket] = deque()
        self._filled = asyncio.Event()

    def put(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)
        self._filled.set()

    async def take(self) -> list[Ticket]:
        await self._filled.wait()
        taken = list(self._tickets)
        self._tickets.clear()
        self._filled.clear()
        return taken
