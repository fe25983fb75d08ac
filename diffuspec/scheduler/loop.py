"""The loop: the only place that awaits and starts calls.

`schedule` decides what to do; everything that happens arrives as an event. An event is a function
that changes the state: a new request, verdicts, drafts, a failure, a reader that has caught up.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.interfaces import Verifier
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.drafting import Drafting
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.schedule import plain_plan, schedule
from diffuspec.scheduler.step import Step
from diffuspec.scheduler.verifications import FinishStep, Verifications
from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.costs import CostModel, DraftCosts
from diffuspec.speculation.values import Limits, Plan, Snapshot
from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.trace import Tracer

Event: TypeAlias = Callable[[], None]


class Events:
    """What has happened since the loop last looked."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._arrival: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        self._events.append(event)
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def take(self, until: float) -> Iterator[Event]:
        """Wait for events until `until` (time.monotonic()); yield those that have arrived.

        Events that are not taken from the iterator are kept.
        """
        loop = asyncio.get_running_loop()
        if self._events or until <= time.monotonic():
            await asyncio.sleep(0)
        else:
            self._arrival = loop.create_future()
            timer = None
            if until < math.inf:
                timer = loop.call_later(until - time.monotonic(), self._wake)
            try:
                await self._arrival
            finally:
                if timer is not None:
                    timer.cancel()
        return (self._events.popleft() for _ in range(len(self._events)))


class Loop:
    """Decodes all running requests: makes calls, learns from them, and decides what is next."""

    def __init__(
        self,
        verifier: Verifier,
        pool: DrafterPool,
        config: CoordinatorConfig,
        finish_step: FinishStep,
        tracer: Tracer | None = None,
        count_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`finish_step`: called with each verdict, or the error that ends its request.

        count_failure: see Learner.
        """
        self.events = Events()
        self.on_plan: Callable[[str], None] | None = None  # called with each plan, in one line
        # roles that do not overlap share a machine
        interference = Interference.assumed(0.0 if config.overlap else 1.0)
        costs = CostModel({name: DraftCosts(interference) for name in pool.names})
        busy = {name: BusyTime() for name in pool.names}
        self.learner = learner = Learner(costs, busy, count_failure)
        put = self.events.put
        self.verifications = Verifications(
            verifier, config, pool, learner, finish_step, put, self._read_again, tracer
        )
        self.drafting = Drafting(
            pool, verifier.info, config, learner, self.verifications, put, tracer
        )
        self._pool = pool
        self._limits = Limits(
            config.first_token_price,
            config.overlap,
            config.max_prefill_seconds,
            config.prefill_chunk_tokens,
            config.max_draft_seconds / 4,
            verifier.info.row_multiple,
        )
        # running ones, the oldest first, but those that wait for their readers
        self.requests: dict[str, Request] = {}
        self._paused: dict[str, Request] = {}  # these, the latest last
        self._plan = Plan()

    async def run(self) -> None:
        """Decode until cancelled."""
        while True:
            for event in await self.events.take(until=self._plan.wait_until):
                event()
            self._plan = self._decide(self._snapshot())
            self._launch(self._plan)

    def _decide(self, snapshot: Snapshot) -> Plan:
        """Return the next plan: plain decoding after a failure while deciding or learning."""
        learner = self.learner
        if not learner.must_decode_plainly:
            try:
                return schedule(snapshot)
            except Exception as error:
                learner.fail("scheduling", error)
        learner.must_decode_plainly = False
        return plain_plan(snapshot)

    def _snapshot(self) -> Snapshot:
        verifications, lanes, now = self.verifications, self._pool.lanes, time.monotonic()
        call = verifications.in_flight
        return Snapshot(
            now=now,
            requests=self._pool.views_of(self.requests.values()),
            drafters=[lane.view(now) for lane in lanes],
            costs=self.learner.costs,
            guard=self.learner.guard,
            limits=self._limits,
            verification_ends_at=None if call is None else call.ends_at,
            verifier_at=verifications.retry_at,
            isolated=[
                [request.request_id for request in group] for group in verifications.isolated
            ],
            alone=self._plan.alone,
            rate=self._plan.rate,
            num_free_pages=verifications.pages.num_free,
            paused={name: request.num_pages for name, request in self._paused.items()},
        )

    def _launch(self, plan: Plan) -> None:
        """Start the calls of a plan."""
        if self.on_plan is not None and (plan.verify or plan.drafts or plan.considered):
            with self.learner.attempt("explaining a plan"):
                self.on_plan(str(plan))
        requests = self.requests
        for request_id, number in plan.homes.items():
            requests[request_id].home = number
        if plan.waiting or self.verifications.pages.num_waiting:
            self._wait_for_pages(plan.waiting)
        for request_id in plan.preempted:
            self._preempt(requests.get(request_id) or self._paused[request_id])
        if plan.verify:
            chosen = [requests[request_id] for request_id in plan.verify]
            self.verifications.begin(chosen, plan)
        for number, request_id in plan.health_checks:
            self.drafting.check(number, requests[request_id])
        for call in plan.drafts:
            self.drafting.begin(call, requests, plan.num_running)

    def _wait_for_pages(self, waiting: frozenset[str]) -> None:
        for request_id, request in self.requests.items():
            if request_id in waiting and request.state == "ready":
                request.progress.enter("waiting", "room in the target's cache")
        self.verifications.pages.num_waiting = len(waiting)

    def _read_again(self) -> None:
        """Read all prefixes again, in chunks: one long step could miss its deadline repeatedly."""
        for request in (*self.requests.values(), *self._paused.values()):
            request.prefill.lose()

    def _preempt(self, request: Request) -> None:
        request.prefill.lose()
        self.verifications.pages.num_preemptions += 1

    def next_step(self) -> Step:
        """Return a step that begins now."""
        now = time.monotonic()
        return Step(now, self.verifications.busy.seconds(now), self.drafting.busy.seconds(now))

    def begin_step(self, request: Request, step: Step | None = None) -> None:
        """Schedule a request that was admitted, has its verdict, or whose reader caught up."""
        request.step = step or self.next_step()
        self.requests[request.request_id] = request
        if self._paused.pop(request.request_id, None):
            by_age = sorted(self.requests.values(), key=lambda other: other.timeline.admitted_at)
            self.requests = {other.request_id: other for other in by_age}
        self.drafting.seek(request)

    def hold(self, request: Request) -> None:
        """Leave out a request that waits for its reader."""
        self.requests.pop(request.request_id, None)
        self._paused[request.request_id] = request

    def drop(self, request: Request) -> None:
        """Forget a request that has ended."""
        self.requests.pop(request.request_id, None)
        self._paused.pop(request.request_id, None)
        self.drafting.drop(request)

    def clear(self) -> None:
        """Forget all requests that are in no call, after a failure of the loop."""
        self.requests.clear()
        self._paused.clear()
        self.verifications.clear()
        self.drafting.clear()
        self._plan = Plan()

    @property
    def in_verifier(self) -> Sequence[Request]:
        """The requests of the verification in flight, which must not be released before it ends."""
        call = self.verifications.in_flight
        return () if call is None else call.requests

    async def stop(self) -> None:
        """End all calls. Another loop may use the pool afterwards."""
        await self.verifications.stop()
        await self.drafting.stop()
        self.clear()
