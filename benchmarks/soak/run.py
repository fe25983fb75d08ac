"""One run: a number of clients against one service for some minutes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from benchmarks import chaos
from benchmarks.service import Service, ServiceKind, started
from benchmarks.soak import sample, series
from benchmarks.soak.client import Client, End, Outcome, connected
from benchmarks.soak.kills import RECOVERY_SECONDS, Kill, Kills
from benchmarks.soak.mixture import Mixture, Request
from benchmarks.soak.oracle import Oracle
from benchmarks.soak.sample import Sample
from benchmarks.soak.slots import lost_slots
from diffuspec.bench.http_client import HttpClient
from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import WorkerError

MAX_FAILURES = 20  # after which a run ends early
_SAMPLE_SECONDS = 3.0
_REST_SECONDS = 30.0  # for gauges to come back; Ray's are some seconds old
_POLL_SECONDS = 0.5
_CONTROL_SECONDS = 10.0
_FAILED = (End.WRONG, End.BROKEN, End.OVERDUE)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    service: ServiceKind
    num_clients: int
    seconds: float
    seed: int
    limit: int | None = None  # distinct requests of each kind; None: all

    @property
    def name(self) -> str:
        return f"{self.service}, {self.num_clients} clients"

    @property
    def has_kills(self) -> bool:
        return self.service is ServiceKind.RAY


@dataclass(slots=True)
class Run:
    """What a run has seen so far."""

    plan: Plan
    outcomes: list[Outcome] = field(default_factory=list)
    failures: list[Outcome] = field(default_factory=list)  # those that no kill excuses
    samples: list[Sample] = field(default_factory=list)
    verifications: series.Verifications = field(default_factory=series.Verifications)
    kills: Kills = field(default_factory=Kills)
    left_over: dict[str, float] = field(default_factory=dict)  # gauges at rest that are not zero
    problems: list[str] = field(default_factory=list)  # faults of the service as a whole
    lost_slots: str | None = None
    seconds: float = 0.0  # duration of the load

    def record(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        is_excused = outcome.end is End.BROKEN and self.kills.disturbed(
            outcome.began, outcome.ended
        )
        if outcome.end in _FAILED and not is_excused:
            self.failures.append(outcome)

    def problem(self, text: str) -> None:
        """Note a fault of the service as a whole, once."""
        if text not in self.problems:
            self.problems.append(text)


async def soak(plan: Plan, folder: Path, say: Callable[[str], None]) -> Run:
    """Start a service, load it, and see what is left. `say` takes the state of the run.

    The log of the service is written into the folder. Raises WorkerError if it does not start.
    """
    run, log = Run(plan), folder / f"{plan.service}-{plan.num_clients}.log"
    say("starts")
    async with started(plan.service, log) as service:
        with contextlib.suppress(_StandsStill):
            await _Soak(run, service, say).run()
        if problem := await service.stop():
            run.problem(problem)
    if not plan.has_kills and (tracebacks := log.read_bytes().count(b"Traceback (")):
        run.problem(f"{tracebacks} tracebacks in {log}")
    return run


class _StandsStill(Exception):
    """The service does not answer any more; `Run.problems` says so."""


class _Soak:
    """The steps of a run over a service."""

    def __init__(self, run: Run, service: Service, say: Callable[[str], None]) -> None:
        self._run, self._service, self._say = run, service, say
        self._mixture, self._oracle = Mixture(run.plan.seed, run.plan.limit), Oracle()
        self._is_over = asyncio.Event()
        self._control = httpx2.AsyncClient(
            base_url=service.url, timeout=_CONTROL_SECONDS, trust_env=False
        )

    async def run(self) -> None:
        async with self._control:
            await self._ask_oracle()
            await self._load()
            await self._look_at_rest()

    async def _ask_oracle(self) -> None:
        requests = self._mixture.answered
        numbers = itertools.count(1)

        def say() -> None:
            self._say(f"plain answers: {next(numbers)} of {len(requests)}")

        try:
            async with HttpClient(self._service.url, speculation={"policy": "off"}) as plain:
                await self._oracle.ask(plain, requests, say)
        except (WorkerError, TimeoutError) as error:
            self._run.problem(f"plain decoding fails: {error or 'no answer in time'}")
            raise _StandsStill from error

    async def _load(self) -> None:
        """Let all clients ask until the time is over, or too much has failed."""
        plan, began = self._run.plan, time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(connected(self._service.url, self._oracle))
            async with asyncio.TaskGroup() as group:
                for number in range(plan.num_clients):
                    group.create_task(self._ask_always(client, self._mixture.requests(number)))
                killing = group.create_task(self._kill()) if plan.has_kills else None
                while not self._is_over.is_set():
                    await asyncio.sleep(_SAMPLE_SECONDS)
                    await self._observe(began)
                    if killing is not None and killing.done():
                        self._is_over.set()
        self._run.seconds = time.monotonic() - began

    async def _ask_always(self, client: Client, requests: Iterator[Request]) -> None:
        backoff = Backoff(0.1, 2.0)
        for request in requests:
            if self._is_over.is_set():
                return
            outcome = await client.send(request)
            self._run.record(outcome)
            if outcome.end is End.BROKEN:
                await asyncio.sleep(backoff.failed())
            else:
                backoff.succeeded()

    async def _kill(self) -> None:
        service = chaos.Service(self._control)
        await service.look()
        rng = random.Random(self._run.plan.seed)

        def on_kill(kill: Kill) -> None:
            self._say(f"{kill.role} killed; whole after {(kill.ended or 0) - kill.began:.1f} s")

        try:
            await self._run.kills.kill_until(self._is_over, service, rng, on_kill)
        except TimeoutError:
            role = self._run.kills.done[-1].role
            self._run.problem(f"not whole {RECOVERY_SECONDS:.0f} s after a {role} was killed")

    async def _observe(self, began: float) -> None:
        """Take a sample; end the load if its time is over or too much has failed."""
        run = self._run
        run.samples.append(await self._sample())
        if (values := await self._values()) is not None:
            run.verifications.read(values)
        elapsed = time.monotonic() - began
        self._say(
            f"{elapsed:.0f} of {run.plan.seconds:.0f} s: {len(run.outcomes):,} requests, "
            f"{run.verifications.num_calls:,.0f} verifications, "
            f"{run.samples[-1].resident_mib:,.0f} MiB, {len(run.failures)} failures"
        )
        if self._service.has_ended or len(run.failures) >= MAX_FAILURES:
            run.problem(f"the run ended early, after {elapsed:.0f} s")
            self._is_over.set()
        elif elapsed >= run.plan.seconds:
            self._is_over.set()

    async def _look_at_rest(self) -> None:
        """See what is left of all requests."""
        self._say("at rest")
        run, until = self._run, time.monotonic() + _REST_SECONDS
        while (values := await self._values()) is None or (run_left := series.left_over(values)):
            if self._service.has_ended or time.monotonic() > until:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if values is None:
            run.problem("/metrics does not answer after the load")
            raise _StandsStill
        run.left_over = run_left
        async with HttpClient(self._service.url) as http:
            num_slots = int(series.total(values, series.MAX_RUNNING))
            run.lost_slots = await lost_slots(http, num_slots)

    async def _sample(self) -> Sample:
        return await asyncio.to_thread(sample.take, self._service.port, len(self._run.outcomes))

    async def _values(self) -> series.Values | None:
        """Return the service's series; None: it does not answer."""
        try:
            reply = await self._control.get("/metrics")
            return series.parse(reply.text) if reply.status_code == 200 else None
        except (httpx2.HTTPError, ValueError):
            return None
