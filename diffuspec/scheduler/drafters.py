"""The drafters of a coordinator: which of them drafts for which request, and whether it is well.

A drafter that fails, is late or answers nonsense costs speed, never a request: its requests go on
without drafts, or with another drafter's. After a pause it is given a trial, and when that
succeeds, it drafts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diffuspec.core.backoff import Breaker
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import AUTO_DRAFTER
from diffuspec.core.types import Draft, DraftRequest, VerifyRequest
from diffuspec.scheduler.cost_model import CostModel, together
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import PreDraft, PreDrafts

UNNAMED = ""  # the name that chooses a coordinator's drafters if they were given none
_PAUSES = 0.5, 30.0  # seconds from failures of a drafter to its next trial, first and last


class PreDraftJob(NamedTuple):
    """A pre-draft that a drafter is asked for."""

    request: Request
    pre_drafts: PreDrafts  # of the verification that it is made for
    pre_draft: PreDraft

    def arrive(self, draft: Draft) -> bool:
        """Keep the pre-draft; return whether its request waits for it."""
        return self.pre_drafts.arrive(self.pre_draft, draft)

    def lose(self) -> bool:
        """Give the pre-draft up; return whether its request waits for it."""
        return self.pre_drafts.lose(self.pre_draft)


@dataclass(slots=True, eq=False)
class VerifyCall:
    """One call of the verifier."""

    requests: Sequence[Request]
    asked: Sequence[VerifyRequest]
    num_rows: int  # fed to the target: tokens to read, and nodes
    num_decoding: int  # requests of which nothing but a draft is verified
    num_running: int  # requests that decoded when it began
    started_at: float = 0.0  # points in time are time.monotonic()
    ends_at: float = 0.0  # as expected
    ended_at: float = 0.0
    draft_busy_seconds: dict[str, float] = field(default_factory=dict)  # in total, when it began


@dataclass(slots=True, eq=False)
class DraftCall:
    """One call of a drafter: drafts that requests wait for, then pre-drafts; or a trial."""

    lane: Lane
    lengths: dict[Request, int]  # of the drafts, by request
    awaited: dict[Request, int] = field(default_factory=dict)  # lengths that a step waits for
    jobs: Sequence[PreDraftJob] = ()
    trial: Request | None = None  # a copy of its draft request tells whether the drafter is well
    started_at: float = 0.0
    ends_at: float = 0.0  # as expected; points in time are time.monotonic()
    ended_at: float = 0.0
    late_at: float = 0.0  # its deadline
    num_unread: int = 0  # prompt tokens that the drafter reads for it
    verify_busy_seconds: float = 0.0  # of the verifier, in total, when it began
    wanted_by: set[Request] = field(default_factory=set)  # a call that no request wants ends
    task: asyncio.Task[list[Draft] | Exception] | None = None
    is_ended: bool = False  # by the loop: it is late, or no request wants it any more

    @property
    def num_positions(self) -> int:
        """Masked positions that the drafter computes."""
        ahead = sum([job.pre_draft.num_draft_tokens for job in self.jobs])
        return sum(self.lengths.values()) + ahead

    def draft_requests(self, max_state_bytes: int) -> list[DraftRequest]:
        """Return what the drafter is asked, the pre-drafts last."""
        if self.trial is not None:
            return [self.trial.draft_request(max(self.trial.step.num_draft_tokens, 1))]
        share = max_state_bytes // max(1, len(self.lengths))
        wanted = [request.draft_request(length, share) for request, length in self.lengths.items()]
        return wanted + [job.pre_draft.request for job in self.jobs]

    def seconds_left(self, now: float) -> float:
        """Expected seconds to its end; a late call takes as long again as it is late."""
        return abs(self.ends_at - now)

    def is_overdue(self, now: float) -> bool:
        """Whether it has taken twice as long as expected."""
        return now - self.started_at > 2 * (self.ends_at - self.started_at)

    def end(self) -> None:
        """Cancel the call. Its end is an event all the same."""
        self.is_ended = True
        if self.task is not None:
            self.task.cancel()

    def drop(self, request: Request) -> None:
        """Want it no more for a request; a call that no other request wants ends at once."""
        self.awaited.pop(request, None)
        self.wanted_by.discard(request)
        if not self.wanted_by and not self.is_ended:
            self.end()


class Lane:
    """One drafter of a pool: it has one call at a time, and no lane waits for another."""

    def __init__(self, drafter: Drafter, name: str, chosen_by: str = UNNAMED) -> None:
        self.chosen_by = chosen_by  # the name that its requests choose
        self.drafter = drafter
        self.name = name
        self.is_gone = False
        self.breaker = Breaker(*_PAUSES)
        self.pre_draft_breaker = Breaker(*_PAUSES)  # large batches may fail where small ones do not
        self.call: DraftCall | None = None
        self.homed: set[Request] = set()  # requests placed here
        self.known: set[Request] = set()  # those whose prefix the drafter has read
        self.held_request_ids: set[str] = set()  # requests whose prefix it may hold

    @property
    def is_available(self) -> bool:
        """Whether requests may be placed here."""
        return self.breaker.is_closed and not self.is_gone

    @property
    def is_idle(self) -> bool:
        return self.call is None and not self.is_gone

    @property
    def load(self) -> tuple[int, int]:
        """Draft tokens of the requests placed here, then requests held: least is chosen first."""
        num_tokens = sum([max(request.last_length, 1) for request in self.homed])
        return num_tokens, len(self.held_request_ids)


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
        self._homes: dict[Request, Lane] = {}
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
        self.lanes.append(Lane(drafter, name, self.names[0] if chosen_by is None else chosen_by))
        self.on_change()

    def remove(self, drafter: Drafter) -> None:
        """Let a drafter leave, if it is here; the drafts of a call under way are still used."""
        for lane in [one for one in self.lanes if one.drafter is drafter]:
            lane.is_gone = True
            self.forget_if_gone(lane)
        self.on_change()

    def forget_if_gone(self, lane: Lane) -> None:
        """Drop the lane of a drafter that has left, once its last call is over."""
        if lane.is_gone and lane.call is None and lane in self.lanes:
            self.lanes.remove(lane)

    def home(self, request: Request) -> Lane | None:
        """Return the lane that a request is placed with, if it still drafts for it."""
        lane = self._homes.get(request)
        fits = lane is not None and lane.is_available and lane.chosen_by == request.drafter
        return lane if fits else None

    def place(self, request: Request) -> Lane | None:
        """Return the lane that drafts for a request; None while no drafter is well."""
        lane = self.home(request)
        if lane is None:
            named = [one for one in self.lanes if one.chosen_by == request.drafter]
            wells = [one for one in named if one.is_available]
            lane = min(wells, key=lambda one: (request not in one.known, one.load), default=None)
            self._leave_home(request)
            if lane is not None:
                self._homes[request] = lane
                lane.homed.add(request)
                lane.held_request_ids.add(request.request_id)
        return lane

    def _leave_home(self, request: Request) -> None:
        lane = self._homes.pop(request, None)
        if lane is not None:
            lane.homed.discard(request)

    def slow_down(self, now: float, seconds: float, costs: CostModel) -> float:
        """Expect draft calls to end later, as a verification of `seconds` begins beside them.

        Returns the seconds that it takes beside them.
        """
        longest = seconds
        for lane in self.lanes:
            if lane.call is not None and lane.call.ends_at > now:
                interference, left = (
                    costs.drafters[lane.chosen_by].interference,
                    lane.call.ends_at - now,
                )
                end, lane_end = together(seconds, left, interference)
                lane.call.ends_at, longest = now + lane_end, max(longest, end)
        return longest

    def drop(self, request: Request) -> None:
        """Stop drafting for a request that has ended, at every drafter."""
        self._leave_home(request)
        for lane in self.lanes:
            lane.known.discard(request)
            if lane.call is not None:
                lane.call.drop(request)

    def reset(self) -> None:
        """Forget all requests: the next coordinator begins with idle lanes."""
        self._homes.clear()
        self.on_change = lambda: None
        for lane in list(self.lanes):
            lane.call = None
            lane.homed.clear()
            lane.known.clear()
            self.forget_if_gone(lane)

    async def release(self, request_id: str) -> None:
        """Forget a request, at every drafter that may hold something for it."""
        holding = [
            lane for lane in self.lanes if not lane.is_gone and request_id in lane.held_request_ids
        ]
        for lane in holding:
            lane.held_request_ids.discard(request_id)
        await asyncio.gather(*(lane.drafter.release(request_id) for lane in holding))
