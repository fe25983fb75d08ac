"""Tickets: sequences on their way between the coordinator's loops, and the inboxes they wait in."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from diffuspec.coordinator.sequence import Sequence
from diffuspec.core.errors import DiffuspecError
from diffuspec.core.types import RequestOutput

logger = logging.getLogger(__name__)

Stage: TypeAlias = Literal["waiting", "needs_draft", "drafting", "ready", "verifying"]


@dataclass(slots=True)
class StepTimes:
    """How the coming step went so far, by time.monotonic()."""

    started_at: float = 0.0  # the verdict before it, or the admission
    ready_at: float = 0.0  # its draft had come, or it was to have none
    drafting_seconds: float = 0.0  # it waited for the drafter's answer, the way there included
    verify_busy_seconds: float = 0.0  # of the verifier until the step began
    draft_busy_seconds: float = 0.0  # of the drafter until then
    reading_seconds: float = 0.0  # of the verifier, on pieces of the prompt before the draft's turn
    reading_transport_seconds: float = 0.0  # the way there and back


@dataclass(slots=True, eq=False)
class Ticket:
    """A sequence on its way through the loops, and where its increments go."""

    sequence: Sequence
    submitted_at: float
    request_id: str | None = None  # the caller's own, which others may share; None: it gave none
    increments: asyncio.Queue[RequestOutput | DiffuspecError] = field(default_factory=asyncio.Queue)
    stage: Stage = "waiting"
    slot: int = 0  # among the running ones; the lowest that was free
    times: StepTimes = field(default_factory=StepTimes)
    is_over: bool = False  # finished, failed, or nobody listens
    was_drafted: bool = False  # before: its drafter has read its prompt
    stalled_since: float | None = None  # the verifier has been gone since then
    num_outages: int = 0  # of the verifier, before it read what the sequence takes for read

    def close(self, reason: str) -> None:
        """It is over: the log has the id, what it came to and why, and none of its text."""
        self.is_over = True
        logger.info(
            "request %s: %d prompt tokens, %d output tokens, %s, %.3f s",
            self.sequence.request_id,
            self.sequence.num_prompt_tokens,
            self.sequence.num_output_tokens,
            reason,
            time.monotonic() - self.submitted_at,
        )


class Inbox:
    """Tickets waiting for a loop. Events of several inboxes may be one."""

    def __init__(self, filled: asyncio.Event | None = None) -> None:
        self._tickets: deque[Ticket] = deque()
        self._filled = filled or asyncio.Event()

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def put(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)
        self._filled.set()

    def remove(self, ticket: Ticket) -> None:
        """Take one out that may or may not be here."""
        if ticket in self._tickets:
            self._tickets.remove(ticket)

    def take_now(self) -> list[Ticket]:
        """Return all of them, perhaps none."""
        taken = list(self._tickets)
        self._tickets.clear()
        return taken

    async def take(self) -> list[Ticket]:
        """Return all of them, at least one."""
        while not self._tickets:
            self._filled.clear()
            await self._filled.wait()
        return self.take_now()
