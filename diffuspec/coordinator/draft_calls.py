"""The way to the drafters: a deadline, an end when nobody waits any more, and what calls take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence as Batch
from dataclasses import dataclass
from typing import Literal

from diffuspec.control.costs import BusyTime
from diffuspec.coordinator.drafter_pool import Member, Probe
from diffuspec.coordinator.ticket import Ticket
from diffuspec.core.errors import DrafterError
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.telemetry.trace import Tracer


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
    """Asks drafters on behalf of tickets. They share one busy time: any of them is at work."""

    def __init__(self, max_seconds: float, tracer: Tracer | None) -> None:
        self.busy = BusyTime()
        self._max_seconds = max_seconds
        self._tracer = tracer
        self._calls: list[_Call] = []

    async def ask(
        self,
        member: Member,
        requests: Batch[DraftRequest],
        tickets: Collection[Ticket],
        num_ahead: int,
    ) -> DraftBatch | None:
        """Draft a batch on behalf of these; None: nobody wants it any more.

        The last num_ahead of the requests are made ahead. Raises whatever a drafter does, and
        DrafterError when it is late or miscounts.
        """
        started = time.monotonic()
        self.busy.begin(started)
        try:
            drafts = await self._call(member, requests, tickets)
        finally:
            ended = time.monotonic()
            self.busy.end(ended)
        if drafts is None:
            return None
        batch = DraftBatch(drafts, ended - started)
        if self._tracer is not None:
            _trace(self._tracer, member.name, batch, started, num_ahead)
        return batch

    async def probe(self, member: Member, probe: Probe) -> bool:
        """Draft what nobody waits for; return False if that ended because its ticket is over.

        Raises like `ask`. The drafter does not count as busy.
        """
        if probe.ticket.is_over:
            return False
        started = time.monotonic()
        drafts = await self._call(member, [probe.request], [probe.ticket])
        if self._tracer is not None:
            self._tracer.span(member.name, "probe", started, time.monotonic(), "grey")
        return drafts is not None

    async def _call(
        self, member: Member, requests: Batch[DraftRequest], tickets: Collection[Ticket]
    ) -> list[Draft] | None:
        started = time.monotonic()
        call = _Call(asyncio.timeout(self._max_seconds), set(tickets))
        self._calls.append(call)
        try:
            return await self._drafts_in_time(member, requests, call)
        except Exception:
            if self._tracer is not None:
                self._tracer.span(member.name, "failed", started, time.monotonic(), "terrible")
            raise
        finally:
            self._calls.remove(call)

    async def _drafts_in_time(
        self, member: Member, requests: Batch[DraftRequest], call: _Call
    ) -> list[Draft] | None:
        try:
            async with call.deadline:
                drafts = await member.drafter.draft(requests)
        except TimeoutError as error:
            if not call.tickets:
                return None
            raise DrafterError(f"no draft within {self._max_seconds} seconds") from error
        if len(drafts) != len(requests):
            raise DrafterError(f"{len(drafts)} drafts for {len(requests)} requests")
        return drafts

    def abandon(self, ticket: Ticket) -> None:
        """A ticket wants no draft any more: a call that nobody else waits for ends at once."""
        for call in self._calls:
            call.tickets.discard(ticket)
            if not call.tickets and not call.deadline.expired():
                call.deadline.reschedule(asyncio.get_running_loop().time())


def _trace(tracer: Tracer, name: str, batch: DraftBatch, started: float, num_ahead: int) -> None:
    """The call as it went: out, the model, the search, back. Both ways take half each."""
    way = max(draft.transport_seconds for draft in batch.drafts) / 2
    ended = started + batch.seconds
    search = max(draft.search_seconds for draft in batch.drafts)
    searched = max(ended - way - search, started)
    kind = "draft" if num_ahead < len(batch.drafts) else "pre-draft"
    colour: Literal["yellow", "good"] = "good" if kind == "draft" else "yellow"
    size = {"num_requests": len(batch.drafts), "num_ahead": num_ahead}
    transport, scorer = f"transport to {name}", f"scorer{name.removeprefix('drafter')}"
    tracer.span(transport, "out", started, started + way)
    tracer.span(name, kind, started + way, searched, colour, size)
    tracer.span(scorer, "search", searched, ended - way, None, size)
    tracer.span(transport, "back", ended - way, ended)
