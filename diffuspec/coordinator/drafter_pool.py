"""The drafters of a coordinator, one or several, and which of them drafts for which request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from diffuspec.coordinator.breaker import Breaker
from diffuspec.coordinator.ticket import Inbox, Ticket
from diffuspec.core.interfaces import Drafter
from diffuspec.core.types import DraftRequest


@dataclass(frozen=True, slots=True)
class Probe:
    """A draft that nobody waits for: a copy of what a request would have asked for."""

    ticket: Ticket
    request: DraftRequest


class Member:
    """A drafter, whether it is well, and what it is to draft."""

    def __init__(self, drafter: Drafter, name: str) -> None:
        self.drafter = drafter
        self.name = name
        self.is_gone = False
        self.breaker = Breaker()
        self.ahead_breaker = Breaker()  # large batches may fail where small ones do not
        self.is_wanted = asyncio.Event()  # a draft, one ahead, a probe, or its end
        self.inbox = Inbox(self.is_wanted)
        self.drafting: list[Ticket] = []
        self.probe: Probe | None = None  # the next one
        self.request_ids: set[str] = set()  # that it may hold something for

    @property
    def load(self) -> tuple[int, int]:
        """Positions waiting or under way, then requests: what to compare members by."""
        tickets = [*self.inbox, *self.drafting]
        num_positions = sum(ticket.sequence.num_draft_tokens for ticket in tickets)
        return num_positions, len(self.request_ids)


class DrafterPool:
    """Drafters that come and go while a coordinator uses them. A pool belongs to one.

    A request stays with the member that knows its prefix; a new one goes to the member with the
    least to do, and so does one whose member fails or leaves.
    """

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._homes: dict[str, Member] = {}
        self._begin: Callable[[Member], None] = lambda member: None

    @classmethod
    def of(cls, drafter: Drafter | DrafterPool) -> DrafterPool:
        """Return a pool as it is, or one of that drafter alone."""
        if isinstance(drafter, DrafterPool):
            return drafter
        pool = cls()
        pool.add(drafter, "drafter")
        return pool

    def attend(self, begin: Callable[[Member], None]) -> None:
        """Begin with every member, and from now on with each that comes."""
        self._begin = begin
        for member in self.members:
            begin(member)

    def add(self, drafter: Drafter, name: str) -> None:
        """Let one more draft: "drafter", and perhaps a number."""
        member = Member(drafter, name)
        self.members.append(member)
        self._begin(member)

    def remove(self, drafter: Drafter) -> None:
        """Give one up; what it is drafting just now still counts. One that is not here is fine."""
        for member in self.members:
            if member.drafter is drafter:
                member.is_gone = True
                member.is_wanted.set()
        self.members = [member for member in self.members if not member.is_gone]

    def place(self, ticket: Ticket) -> Member | None:
        """Return the member to draft for a ticket; None while none is well."""
        request_id = ticket.sequence.request_id
        home = self._homes.get(request_id)
        if home is None or home.is_gone or not home.breaker.is_closed:
            available = [member for member in self.members if member.breaker.is_closed]
            if not available:
                return None
            home = self._homes[request_id] = min(available, key=lambda member: member.load)
            home.request_ids.add(request_id)
            ticket.was_drafted = False
        return home

    def home(self, ticket: Ticket) -> Member | None:
        """Return the member that drafted for a ticket last."""
        return self._homes.get(ticket.sequence.request_id)

    def probe(self, ticket: Ticket) -> None:
        """Let whoever failed, and had its pause, draft for a ticket that goes on without it."""
        for member in self.members:
            if member.breaker.take_probe():
                member.request_ids.add(ticket.sequence.request_id)
                member.probe = Probe(ticket, ticket.sequence.draft_request())
                member.is_wanted.set()

    async def release(self, request_id: str) -> None:
        """Forget a request, at every member that may hold something for it."""
        self._homes.pop(request_id, None)
        holding = [member for member in self.members if request_id in member.request_ids]
        for member in holding:
            member.request_ids.discard(request_id)
        await asyncio.gather(*(member.drafter.release(request_id) for member in holding))
