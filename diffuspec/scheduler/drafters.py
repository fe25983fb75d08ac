"""The drafters of a coordinator, and their health.

A drafter that fails, is late or gives invalid answers costs speed, never a request: its requests
continue without drafts, or with another drafter's. After a pause it gets a health check; if that
succeeds, it drafts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import Drafter
from diffuspec.scheduler.calls import UNNAMED, DraftCall, Lane
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import PreDraft
from diffuspec.speculation.costs import CostModel
from diffuspec.speculation.values import RequestView


class DrafterPool:
    """The drafters of one coordinator; they may join and leave while it uses them.

    Drafters with the same name are interchangeable, and draft for requests that chose the name.
    """

    def __init__(self, num_expected: int = 0, names: Sequence[str] = (UNNAMED,)) -> None:
        """`num_expected`: number of drafters while all are healthy; more may join.

        `names`: names that requests may choose; requests that choose none get the first.
        """
        self._num_expected = num_expected
        self._num_added = 0
        self.names = tuple(names)
        self.lanes: list[Lane] = []  # a lane that leaves stays until its last call is over
        self.on_change: Callable[[], None] = lambda: None  # called when a drafter joins or leaves

    @classmethod
    def of(cls, drafter: Drafter | Mapping[str, Drafter] | DrafterPool) -> DrafterPool:
        """Return a pool unchanged, or a new pool of one drafter or of named drafters."""
        if isinstance(drafter, DrafterPool):
            return drafter
        named = drafter if isinstance(drafter, Mapping) else {UNNAMED: drafter}
        pool = cls(names=list(named))
        for name, member in named.items():
            pool.add(member, f"drafter {name}" if len(named) > 1 else "drafter", name)
        return pool

    def choose(self, name: str | None) -> str:
        """Return the name that a request chose; None chooses the first.

        Raises InvalidRequestError for an unknown name.
        """
        if name is None:
            return self.names[0]
        names = () if self.names[0] == UNNAMED else self.names
        if name not in names:
            known = ", ".join(names) or "none, there are no names to choose from"
            raise InvalidRequestError(f"drafter must be one of {known}, got {name!r}")
        return name

    @property
    def num_expected(self) -> int:
        return max(self._num_expected, len(self.lanes))

    @property
    def num_available(self) -> int:
        """Number of drafters with which requests may be placed."""
        return sum(lane.is_available for lane in self.lanes)

    def add(self, drafter: Drafter, name: str, chosen_by: str | None = None) -> None:
        """Let another drafter join. `name`: its name in logs and status: "drafter", or "drafter 0".

        `chosen_by`: the name by which requests choose it; by default the first.
        """
        chosen_by = self.names[0] if chosen_by is None else chosen_by
        self.lanes.append(Lane(drafter, name, chosen_by, self._num_added))
        self._num_added += 1
        self.on_change()

    def remove(self, drafter: Drafter) -> None:
        """Let a drafter leave, if it is here; the drafts of a running call are still used."""
        for lane in [lane for lane in self.lanes if lane.drafter is drafter]:
            lane.is_gone = True
            self.forget_if_gone(lane)
        self.on_change()

    def forget_if_gone(self, lane: Lane) -> None:
        """Drop the lane of a drafter that has left, once its last call is over."""
        if lane.is_gone and lane.call is None and lane in self.lanes:
            self.lanes.remove(lane)

    def views_of(self, requests: Iterable[Request]) -> list[RequestView]:
        """Return what decisions about each request depend on."""
        homes = {lane.number for lane in self.lanes if lane.is_available}
        held = [(lane.number, lane.held_request_ids) for lane in self.lanes]
        return [
            request.view(
                request.home if request.home in homes else None,
                [number for number, names in held if request.request_id in names],
            )
            for request in requests
        ]

    def call_for(self, pre_draft: PreDraft) -> DraftCall | None:
        """Return the call in which a pre-draft is on its way.

        It may be that of a lane which has left, whereas the request is placed in another one.
        """
        calls = [lane.call for lane in self.lanes if lane.call is not None]
        return next(
            (call for call in calls if any([job.pre_draft is pre_draft for job in call.jobs])), None
        )

    def slow_down(self, now: float, seconds: float, costs: CostModel) -> float:
        """Delay the expected ends of draft calls, as a verification of `seconds` begins.

        Returns the expected seconds of the verification beside them.
        """
        longest = seconds
        for lane in self.lanes:
            if lane.call is not None and lane.call.ends_at > now:
                interference = costs.drafters[lane.chosen_by].interference
                end, lane_end = interference.ends(seconds, lane.call.ends_at - now)
                lane.call.ends_at, longest = now + lane_end, max(longest, end)
        return longest

    def drop(self, request: Request) -> None:
        """Stop drafting for a request that has ended, at every drafter."""
        request.home = None
        for lane in self.lanes:
            if lane.call is not None:
                lane.call.drop(request)

    def reset(self) -> None:
        """Forget all requests: the next coordinator starts with idle lanes."""
        self.on_change = lambda: None
        for lane in list(self.lanes):
            lane.call = None
            self.forget_if_gone(lane)

    async def release(self, request_id: str) -> None:
        """Release a request at every drafter that may hold something for it."""
        holding = [
            lane for lane in self.lanes if not lane.is_gone and request_id in lane.held_request_ids
        ]
        for lane in holding:
            lane.held_request_ids.discard(request_id)
        await asyncio.gather(*(lane.drafter.release(request_id) for lane in holding))
