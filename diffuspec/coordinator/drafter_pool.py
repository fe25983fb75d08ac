"""The drafters of a coordinator, one or several, and which of them drafts for which request."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

from diffuspec.coordinator.draft_lane import DraftLane, Trial
from diffuspec.coordinator.request import Request
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import AUTO_DRAFTER

UNNAMED = ""  # what a coordinator's drafters are chosen by if they were given no names


class DrafterPool:
    """Drafters that may join and leave while a coordinator uses them. A pool belongs to one.

    Drafters of one name are equal, and draft for the requests that chose the name. A request stays
    with the drafter that knows its prefix; a new one goes to the drafter with the least load, as
    does one whose drafter fails or leaves.
    """

    def __init__(self, num_expected: int = 0, names: Sequence[str] = (UNNAMED,)) -> None:
        """`num_expected` drafters should be here; more may be.

        `names` are what requests may choose; the first is for requests that do not.
        """
        self._num_expected = num_expected
        self.names = tuple(names)
        self.lanes: list[DraftLane] = []  # also those that leave, until their last call is over
        self.joined: asyncio.Queue[DraftLane] = asyncio.Queue()  # lanes to be run

    @classmethod
    def of(cls, drafter: Drafter | Mapping[str, Drafter] | DrafterPool) -> DrafterPool:
        """Return a pool as it is, or a pool of this one drafter, or of one for each name."""
        if isinstance(drafter, DrafterPool):
            return drafter
        named = drafter if isinstance(drafter, Mapping) else {UNNAMED: drafter}
        pool = cls(names=list(named))
        for name, one in named.items():
            pool.add(one, f"drafter {name}" if len(named) > 1 else "drafter", name)
        return pool

    def choose(self, name: str | None) -> str:
        """Return the name that a request chose, or the one for those that did not.

        AUTO_DRAFTER stays what it is. Raises InvalidRequestError for an unknown name.
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
        """Let another drafter join; its name is "drafter", perhaps with more to tell it by.

        `chosen_by` is the name that its requests choose, by default the first.
        """
        lane = DraftLane(drafter, name, self.names[0] if chosen_by is None else chosen_by)
        self.lanes.append(lane)
        self.joined.put_nowait(lane)

    def remove(self, drafter: Drafter) -> None:
        """Let a drafter leave, if it is here; the call it is in still counts."""
        for lane in self.lanes:
            if lane.drafter is drafter:
                lane.is_gone = True
                lane.has_work.set()

    def forget(self, lane: DraftLane) -> None:
        """Drop the lane of a drafter that has left: its last call is over."""
        self.lanes.remove(lane)

    def place(self, request: Request) -> DraftLane | None:
        """Return the lane to draft for a request; None while no drafter is well."""
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
        """Return the requests that wait for the call that should end first, and when it should.

        None, and infinity, where no end is known.
        """
        calls = [lane.under_way for lane in self.lanes if lane.under_way is not None]
        batch = min(calls, key=lambda batch: batch.ends_at, default=None)
        if batch is None or batch.ends_at == math.inf:
            return [], math.inf
        return [one for one in batch.requests if one.state == "drafting"], batch.ends_at

    def try_again(self, request: Request) -> None:
        """Let drafters that failed, and whose pause is over, draft a copy for this request."""
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
        """Draft no more for a request, at any drafter."""
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
