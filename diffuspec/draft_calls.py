"""The way to the drafter: a deadline, an end when nobody waits any more, and what calls take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence as Batch
from dataclasses import dataclass
from typing import Literal

from diffuspec.costs import BusyTime
from diffuspec.errors import DrafterError
from diffuspec.interfaces import Drafter
from diffuspec.ticket import Ticket
from diffuspec.trace import Tracer
from diffuspec.types import Draft, DraftRequest


@dataclass(frozen=True, slots=True)
class DraftBatch:
    """What a call came to. The seconds are those of the whole call."""

    drafts: list[Draft]
    seconds: float


@dataclass(slots=True, eq=False)
class _Call:
    deadline: asyncio.Timeout
    tickets: set[Ticket]  # that still want what comes of it


class DraftCalls:
    """Asks the drafter on behalf of tickets."""

    def __init__(self, drafter: Drafter, max_seconds: float, tracer: Tracer | None) -> None:
        self.busy = BusyTime()
        self._drafter = drafter
        self._max_seconds = max_seconds
        self._tracer = tracer
        self._calls: list[_Call] = []

    async def ask(
        self, requests: Batch[DraftRequest], tickets: Collection[Ticket], num_ahead: int, lane: int
    ) -> DraftBatch | None:
        """Draft a batch on behalf of these; None: nobody wants it any more.

        The last num_ahead of the requests are made ahead; lanes are numbered from 1. Raises
        whatever a drafter does, and DrafterError when it is late or miscounts.
        """
        started = time.monotonic()
        self.busy.begin(started)
        try:
            drafts = await self._call(requests, tickets)
        except Exception:
            self._trace_failure(started, lane)
            raise
        finally:
            ended = time.monotonic()
            self.busy.end(ended)
        if drafts is None:
            return None
        batch = DraftBatch(drafts, ended - started)
        if self._tracer is not None:
            self._trace(self._tracer, batch, started, num_ahead, lane)
        return batch

    async def probe(self, request: DraftRequest, ticket: Ticket, lane: int) -> bool:
        """Draft what nobody waits for; return False if that ended because the ticket is over.

        Raises like `ask`. The drafter does not count as busy.
        """
        started = time.monotonic()
        try:
            drafts = None if ticket.is_over else await self._call([request], [ticket])
        except Exception:
            self._trace_failure(started, lane)
            raise
        if self._tracer is not None:
            self._tracer.span(_lane("drafter", lane), "probe", started, time.monotonic(), "grey")
        return drafts is not None

    async def _call(
        self, requests: Batch[DraftRequest], tickets: Collection[Ticket]
    ) -> list[Draft] | None:
        call = _Call(asyncio.timeout(self._max_seconds), set(tickets))
        self._calls.append(call)
        try:
            async with call.deadline:
                drafts = await self._drafter.draft(requests)
        except TimeoutError as error:
            if not call.tickets:
                return None
            raise DrafterError(f"no draft within {self._max_seconds} seconds") from error
        finally:
            self._calls.remove(call)
        if len(drafts) != len(requests):
            raise DrafterError(f"{len(drafts)} drafts for {len(requests)} requests")
        return drafts

    def abandon(self, ticket: Ticket) -> None:
        """A ticket wants no draft any more: a call that nobody else waits for ends at once."""
        for call in self._calls:
            call.tickets.discard(ticket)
            if not call.tickets and not call.deadline.expired():
                call.deadline.reschedule(asyncio.get_running_loop().time())

    def _trace(
        self, tracer: Tracer, batch: DraftBatch, started: float, num_ahead: int, lane: int
    ) -> None:
        """The call as it went: out, the model, the search, back. Both ways take half each."""
        way = max(draft.transport_seconds for draft in batch.drafts) / 2
        ended = started + batch.seconds
        search = max(draft.search_seconds for draft in batch.drafts)
        searched = max(ended - way - search, started)
        name = "draft" if num_ahead < len(batch.drafts) else "pre-draft"
        colour: Literal["yellow", "good"] = "good" if name == "draft" else "yellow"
        size = {"num_requests": len(batch.drafts), "num_ahead": num_ahead}
        tracer.span(_lane("transport to drafter", lane), "out", started, started + way)
        tracer.span(_lane("drafter", lane), name, started + way, searched, colour, size)
        tracer.span(_lane("scorer", lane), "search", searched, ended - way, None, size)
        tracer.span(_lane("transport to drafter", lane), "back", ended - way, ended)

    def _trace_failure(self, started: float, lane: int) -> None:
        if self._tracer is not None:
            name = _lane("drafter", lane)
            self._tracer.span(name, "failed", started, time.monotonic(), "terrible")


def _lane(role: str, number: int) -> str:
    return role if number == 1 else f"{role} {number}"
