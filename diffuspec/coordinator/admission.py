"""Admission: which requests are running, which wait for a slot, and which are refused."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from itertools import count

from diffuspec.coordinator.ticket import Ticket
from diffuspec.core.errors import OverloadedError
from diffuspec.telemetry.metrics import Metrics


class Admission:
    """The tickets of a coordinator, in the order they came."""

    def __init__(self, max_waiting: int, metrics: Metrics) -> None:
        self._max_waiting = max_waiting
        self._metrics = metrics
        self._waiting: deque[Ticket] = deque()
        self._running: set[Ticket] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_draining = False

    def __iter__(self) -> Iterator[Ticket]:
        return iter((*self._waiting, *self._running))

    def check_load(self, max_running: int) -> None:
        """Raises OverloadedError when one more cannot be taken."""
        if self._is_draining:
            raise OverloadedError("the coordinator is shutting down; try again later")
        num_decoding = sum(not ticket.is_over for ticket in self._running)
        num_free = max(max_running - num_decoding, 0)
        if len(self._waiting) >= self._max_waiting + num_free:
            raise OverloadedError(f"{len(self._waiting)} requests are waiting; try again later")

    def submit(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)
        self._is_empty.clear()

    def admit(self, max_running: int) -> list[Ticket]:
        """Return those that may start now, each with a slot of its own."""
        admitted = []
        while self._waiting and len(self._running) < max_running:
            ticket, now = self._waiting.popleft(), time.monotonic()
            taken = {other.slot for other in self._running}
            ticket.slot = next(slot for slot in count() if slot not in taken)
            ticket.times.started_at = now
            self._running.add(ticket)
            self._metrics.observe_admission(now - ticket.submitted_at)
            admitted.append(ticket)
        self._report()
        return admitted

    def leave(self, ticket: Ticket) -> None:
        """Forget a ticket, waiting or running; its slot is free."""
        self._running.discard(ticket)
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        self._report()

    async def drain(self, max_seconds: float) -> bool:
        """Take nobody any more and let those here finish; return whether they did in this time."""
        self._is_draining = True
        try:
            async with asyncio.timeout(max_seconds):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True

    def _report(self) -> None:
        self._metrics.waiting.set(len(self._waiting))
        self._metrics.running.set(len(self._running))
        if not self._waiting and not self._running:
            self._is_empty.set()
