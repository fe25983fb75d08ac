"""DrafterPool: the drafters of a coordinator, and which of them drafts for which request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from diffuspec.coordinator.draft_lane import DraftLane, Trial
from diffuspec.coordinator.request import Request
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import AUTO_DRAFTER

UNNAMED = ""  # the name that chooses a coordinator's drafters if they were given none


class DrafterPool:
    """The drafters of one coordinator; they may join and leave while it uses them.

    Drafters of one name are equal, and draft for the requests that chose the name. A request stays
    with the drafter that knows its prefix. A new request, or one whose drafter fails or leaves,
    goes to the drafter with the least load.
    """

    def __init__(self, num_expected: int = 0, names: Sequence[str] = (UNNAMED,)) -> None:
        """`num_expected`: least number of drafters while all are well; more may join.

        `names`: those that requests may choose; requests that choose none get the first.
        """
        self._num_expected = num_expected
        self.names = tuple(names)
        self.lanes: list[DraftLane] = []  # a lane that leaves stays until its last call is over
        self.joined: asyncio.Queue[DraftLane] = asyncio.Queue()  # lanes to be run

    @classmethod
    def of(cls, drafter: Drafter | Mapping[str, Drafter] | DrafterPool) -> DrafterPool:
        """Return a pool unchanged, or a new pool of one drafter or of named drafters."""
        if isinstance(drafter, DrafterPool):
            return drafter
        named = drafter if isinstance(drafter, Mapping) else {UNNAMED: drafter}
        pool = cls(names=list(named))
        for name, one in named.items():
            pool.add(one, f"drafter {name}" if len(named) > 1 else "drafter", name)
        return pool

    def choose(self, name: str | None) -> str:
        """Return the name that a request chose, AUTO_DRAFTER among them; the first if it is None.

        Raises InvalidRequestError for an unknown name.
        """
        if name is None:
            return self.names[0]
        names = [] if self.names[0] == UNNAMED else [*self.names, AUTO_DRAFTER]
        if name not in names:
            known = ", ".join(names) or "none, there are no names to choose from"
            raise InvalidRequestError(f"drafter must be one of {known}, got {name!r}")
        return name

    @property
    def num_expected(self) -> int:
        return max(self._num_expected, len(self.lanes))

    @property
    def num_available(self) -> int:
        """Drafters that requests may be placed with."""
        return sum(lane.is_available for lane in self.lanes)

    def add(self, drafter: Drafter, name: str, chosen_by: str | None = None) -> None:
        """Let another drafter join. Logs and status call it `name`: "drafter", or "drafter 0".

        `chosen_by` is the name that its requests choose, by default the first.
        """
        lane = DraftLane(drafter, name, self.names[0] if chosen_by is None else chosen_by)
        self.lanes.append(lane)
        self.joined.put_nowait(lane)

    def remove(self, drafter: Drafter) -> None:
        """Let a drafter leave, if it is here; the drafts of a call under way are still used."""
        for lane in self.lanes:
            if lane.drafter is drafter:
                lane.is_gone = True
                lane.has_work.set()

    def let_lanes_join_again(self) -> None:
        """Offer all lanes to the next coordinator: the one that ran them has stopped."""
        self.joined = asyncio.Queue()
        for lane in self.lanes:
            self.joined.put_nowait(lane)

    def forget(self, lane: DraftLane) -> None:
        """Drop the lane of a drafter that has left: its last call is over."""
        self.lanes.remove(lane)

    def place(self, request: Request) -> DraftLane | None:
        """Return the lane that drafts for a request; None while no drafter is well."""
        lane = request.lane
        if lane is None or not lane.is_available:
            available = [one for one in self._chosen_by(request) if one.is_available]
            if not available:
                return None
            lane = min(available, key=lambda lane: lane.load)
            lane.held_request_ids.add(request.request_id)
            request.lane, request.is_known_to_drafter = lane, False
        return lane

    def _chosen_by(self, request: Request) -> list[DraftLane]:
        return [lane for lane in self.lanes if lane.chosen_by == request.drafter]

    def next_drafts(self) -> tuple[list[Request], float]:
        """Return the requests that wait for the call expected to end first, and when it should end.

        No requests, and infinity, if no end is known.
        """
        calls = [lane.under_way for lane in self.lanes if lane.under_way is not None]
        batch = min(calls, key=lambda batch: batch.ends_at, default=None)
        if batch is None or batch.ends_at == math.inf:
            return [], math.inf
        return [one for one in batch.requests if one.state == "drafting"], batch.ends_at

    def drafting(self) -> list[Request]:
        """Return the requests that wait for a draft before they are verified."""
        return [one for lane in self.lanes for one in lane.requests if one.state == "drafting"]

    def try_again(self, request: Request) -> None:
        """Give a trial, a copy of this request's draft, to failed drafters whose pause is over."""
        for lane in self.lanes:
            if not lane.is_gone and lane.breaker.take_trial():
                try:
                    lane.trial = Trial(request, request.draft_request())
                except Exception:
                    lane.breaker.give_up_trial()
                    raise
                lane.held_request_ids.add(request.request_id)
                lane.has_work.set()

    def drop(self, request: Request) -> None:
        """Stop drafting for a request, at every drafter."""
        for lane in self.lanes:
            lane.drop(request)

    async def release(self, request_id: str) -> None:
        """Forget a request, at every drafter that may hold something for it."""
        holding = [
            lane for lane in self.lanes if not lane.is_gone and request_id in lane.held_request_ids
        ]
        for lane in holding:
            lane.held_request_ids.discard(request_id)
        await asyncio.gather(*(lane.drafter.release(request_id) for lane in holding))
