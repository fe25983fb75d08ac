"""The loop: the only place that awaits and starts calls.

`schedule` decides what to do; everything that happens arrives as an event. An event is a function
that changes the state: a new request, verdicts, drafts, a failure, a reader that has caught up.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

from diffuspec.adl.baseline import Baseline
from diffuspec.adl.cost_model import CostModel
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.interfaces import Verifier
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.drafting import Drafting
from diffuspec.scheduler.explain import explain
from diffuspec.scheduler.isolation import Isolation
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.plan import Plan, Snapshot
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.schedule import plain_plan, schedule
from diffuspec.scheduler.step import Step
from diffuspec.scheduler.verifications import FinishStep, Verifications
from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.trace import Tracer

Event: TypeAlias = Callable[[], None]

# Turns of the event loop between the end of an answer and the next calls: its slot is freed, its
# client wakes and sends the next request, and that is admitted.
_NUM_TURNS = 4


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
        interference = 0.0 if config.overlap else 1.0  # roles that do not overlap share a machine
        self._pool = pool
        self._config = config
        busy = {name: BusyTime() for name in pool.names}
        costs, baseline = CostModel(pool.names, interference), Baseline(pool.names)
        self.learner = learner = Learner(costs, baseline, busy, count_failure)
        put = self.events.put
        self.verifications = Verifications(
            verifier, config, pool, learner, finish_step, put, tracer
        )
        self.drafting = Drafting(
            pool, verifier.info, config, learner, self.verifications, put, tracer
        )
        self._isolation = Isolation()
        self._plan = Plan()
        self._turns_left = 0  # turns of the event loop before calls may begin

    async def run(self) -> None:
        """Decode until cancelled."""
        while True:
            for event in await self.events.take(until=self._plan.wait_until):
                event()
            snapshot = self._snapshot()
            self._plan = self._decide(snapshot)
            self._launch(self._plan, snapshot)

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
        verifications, config = self.verifications, self._config
        self._turns_left = max(self._turns_left - 1, 0)
        ready = self._isolation.choose(verifications.ready, self._in_calls)
        return Snapshot(
            now=time.monotonic(),
            ready=ready,
            num_running=self.num_decoding - _num_held(verifications.ready, ready),
            lanes=self._pool.lanes,
            home=self._pool.home,
            verification=verifications.in_flight,
            isolated=verifications.isolated[0] if verifications.isolated else (),
            verifier_at=verifications.retry_at,
            costs=self.learner.costs,
            baseline=self.learner.baseline,
            first_token_price=config.first_token_price,
            overlap=config.overlap,
            max_prefill_seconds=config.max_prefill_seconds,
            max_prefill_tokens=config.prefill_chunk_tokens,
            max_draft_seconds=config.max_draft_seconds,
            rate=self._plan.rate,
            may_begin=not self._turns_left,
        )

    def linger(self) -> None:
        """Let a client whose answer has ended send another request before the next calls begin."""
        self._turns_left = _NUM_TURNS

    def _launch(self, plan: Plan, snapshot: Snapshot) -> None:
        """Start the calls of a plan."""
        if self.on_plan is not None and (plan.verify or plan.drafts or plan.considered):
            with self.learner.attempt("explaining a plan"):
                self.on_plan(explain(plan, snapshot))
        if plan.verify:
            self.verifications.begin(plan, snapshot.num_running)
            for trial in self._pool.trials(plan.verify, time.monotonic()):
                self.drafting.start(trial)
        for call in plan.drafts:
            self.drafting.begin(call, snapshot.num_running)

    def _in_calls(self) -> Iterator[Request]:
        calls = [lane.call for lane in self._pool.lanes if lane.call is not None]
        if self.verifications.in_flight is not None:
            yield from self.verifications.in_flight.requests
        yield from [request for call in calls for request in call.wanted_by]
        yield from [request for group in self.verifications.isolated for request in group]

    @property
    def num_decoding(self) -> int:
        """Number of decoding requests: neither held nor reading their prompts."""
        call = self.verifications.in_flight
        verifying = call.num_decoding if call is not None else 0
        return self.verifications.num_ready + self._pool.num_awaited + verifying

    def next_step(self) -> Step:
        """Return a step that begins now."""
        now = time.monotonic()
        return Step(now, self.verifications.busy.seconds(now), self.drafting.busy.seconds(now))

    def begin_step(self, request: Request, step: Step | None = None) -> None:
        """Schedule a request that was admitted, has its verdict, or whose reader caught up."""
        request.step = step or self.next_step()
        request.is_first_draft = False
        self.drafting.seek(request)

    def drop(self, request: Request) -> None:
        """Forget a request that has ended."""
        self.verifications.ready.pop(request, None)
        self.drafting.drop(request)

    def clear(self) -> None:
        """Forget all requests that are in no call, after a failure of the loop."""
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


def _num_held(ready: Collection[Request], chosen: Sequence[Request]) -> int:
    """Return how many decoding requests are ready but not chosen."""
    if len(ready) == len(chosen):
        return 0
    return sum([not request.prefill.is_long for request in ready if request not in chosen])
