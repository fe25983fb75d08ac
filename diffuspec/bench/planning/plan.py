"""A capacity plan: the real scheduler in simulated time, for several placements and loads."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np

from diffuspec.bench.load import LoadClient, LoadRun, RateRun, ask_all, ask_at_rate
from diffuspec.bench.planning.acceptance import Recording, with_drafts
from diffuspec.bench.planning.costs import CostedMachine
from diffuspec.bench.planning.loop import run_in_virtual_time
from diffuspec.bench.planning.machines import CallSize
from diffuspec.bench.planning.roles import INFO
from diffuspec.bench.planning.served import ServedEngines
from diffuspec.bench.planning.simulation import Simulation
from diffuspec.bench.planning.traffic import Answer, Regime, make_answer
from diffuspec.core.params import PLAIN, SpeculationParams
from diffuspec.core.types import Prompt

# the drafter: none, on the target's GPU, on its own, or in a server for engines of other makes
OFF, SHARED, APART, SERVED = "off", "shared", "apart", "served"
BUSY = 0.85  # share of the capacity above which times to the first token depend on chance
_BAND = 0.05  # more and fewer requests per second there, to see how much
PAYS = 1.02  # least ratio of tokens/s that counts as a gain

# Requests of a point: without drafts nothing depends on chance but lengths; at a rate, times to the
# first token do. Fewer if answers are long.
_NUM_REQUESTS, _NUM_PLAIN, _NUM_AT_RATE, _MOST_TOKENS = 60, 24, 120, 60_000
MOST_REQUESTS = 900  # of a point: below the vocabulary of simulated traffic
_LEAST_REQUESTS = 16
_ROUNDS = 2.5  # answers for each client
_MOST_DRAFTED = 32


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of a trace: when it comes, in seconds, and its tokens."""

    at: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of a plan."""

    regime: Regime
    recording: Recording | None = None
    num_shared_tokens: int = 0  # of all prompts
    trace: tuple[Arrival, ...] = ()  # lengths and times, in place of the regime's
    num_requests: int | None = None  # None: as many as give sound figures, or those of the trace

    def answers(self, num_requests: int) -> tuple[Answer, ...]:
        """Return requests by number."""
        answers = tuple(self._answer(number, num_requests) for number in range(num_requests))
        if self.recording is None:
            return answers
        return tuple(with_drafts(answer, self.recording) for answer in answers)

    def _answer(self, number: int, num_requests: int) -> Answer:
        regime = self.regime
        if self.trace:
            one = self.trace[number % len(self.trace)]
            prompts = one.prompt_tokens, one.prompt_tokens
            own = one.answer_tokens, one.answer_tokens
            regime = replace(regime, prompt_tokens=prompts, answer_tokens=own)
        return make_answer(regime, number, num_requests)

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean tokens of a prompt and of an answer."""
        if self.trace:
            prompts = fmean(arrival.prompt_tokens for arrival in self.trace)
            return prompts, fmean(arrival.answer_tokens for arrival in self.trace)
        return fmean(self.regime.prompt_tokens), fmean(self.regime.answer_tokens)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the drafter is."""

    name: str
    machine: CostedMachine
    num_gpus: float  # GPUs of a pipeline; a draft server's engines share its GPU
    max_sequences: int
    has_drafts: bool = True
    num_engines: int = 0  # engines of another make that share a draft server; 0: one of ours

    def open(self, answers: Sequence[Answer], num_shared_tokens: int) -> Simulation | ServedEngines:
        """Return the system that is simulated. Its figures are those of one engine."""
        if self.num_engines:
            sizes = self.num_engines, self.max_sequences, num_shared_tokens
            return ServedEngines(self.machine, answers, *sizes)
        info = replace(INFO, max_sequences=self.max_sequences, max_model_len=2**17)
        speculation = SpeculationParams() if self.has_drafts else PLAIN
        return Simulation(self.machine, answers, lambda _: speculation, info, num_shared_tokens)


@dataclass(frozen=True, slots=True)
class Load:
    """A number of requests at a time, requests per second, or the trace's own times."""

    at_a_time: int | None = None
    rate: float | None = None
    pace: float = 1.0  # factor by which a trace's requests come faster

    def scaled(self, factor: float) -> Load:
        """Return the load with a factor as many requests per second."""
        if self.rate is None:
            return replace(self, pace=self.pace * factor)
        return replace(self, rate=self.rate * factor)

    def __str__(self) -> str:
        if self.rate is not None:
            return f"{self.rate:.3g}/s"
        return "trace" if self.at_a_time is None else str(self.at_a_time)


@dataclass(frozen=True, slots=True)
class Point:
    """What a placement does at a load; times in seconds."""

    placement: str
    load: Load
    num_requests: int
    tokens_per_second: float
    first_token_p50: float
    first_token_p99: float
    per_token_p50: float
    per_token_p99: float
    target_busy: float
    drafter_busy: float
    hit_rate: float | None  # of drafts made ahead; None: there were none
    num_draft_tokens: float  # per step
    acceptance_length: float
    num_refused: int


def simulate(placement: Placement, traffic: Traffic, load: Load) -> Point:
    """Decode requests in virtual time."""
    return run_in_virtual_time(_simulate(placement, traffic, load))


async def _simulate(placement: Placement, traffic: Traffic, load: Load) -> Point:
    answers = traffic.answers(_num_requests(placement, traffic, load))
    prompts: list[Prompt] = [answer.prompt for answer in answers]
    async with placement.open(answers, traffic.num_shared_tokens) as system:
        workers, started = [*system.targets, *system.drafters], time.monotonic()
        before = [worker.busy_seconds for worker in workers]
        clients: Sequence[LoadClient] = system.clients
        runs = await asyncio.gather(
            *[
                _ask(client, _turned(prompts, number / len(clients)), traffic, load)
                for number, client in enumerate(clients)
            ]
        )
        seconds = time.monotonic() - started
    busy = [(w.busy_seconds - begun) / seconds for w, begun in zip(workers, before, strict=True)]
    return _point(placement.name, load, system, runs, busy)


def _turned(prompts: list[Prompt], share: float) -> list[Prompt]:
    """Return the prompts with a share of them moved to the end: engines do not work in step."""
    place = round(share * len(prompts))
    return prompts[place:] + prompts[:place]


async def _ask(
    client: LoadClient, prompts: Sequence[Prompt], traffic: Traffic, load: Load
) -> LoadRun | RateRun:
    if load.at_a_time is not None:
        return await ask_all(client, prompts, load.at_a_time, 0)
    times = None
    if load.rate is None:
        times = [arrival.at / load.pace for arrival in traffic.trace]
    return await ask_at_rate(client, prompts, load.rate or 0.0, 0, times)


def _num_requests(placement: Placement, traffic: Traffic, load: Load) -> int:
    if traffic.num_requests is not None:
        return traffic.num_requests
    if load.at_a_time is None and load.rate is None:
        return len(traffic.trace)
    usual = _NUM_REQUESTS if placement.has_drafts else _NUM_PLAIN
    usual = usual if load.rate is None else _NUM_AT_RATE
    sound = min(usual, _MOST_TOKENS / traffic.mean_tokens[1])
    wanted = max(sound / max(placement.num_engines, 1), _ROUNDS * (load.at_a_time or 0))
    return min(max(math.ceil(wanted), _LEAST_REQUESTS), MOST_REQUESTS)


def _point(
    name: str,
    load: Load,
    system: Simulation | ServedEngines,
    runs: Sequence[LoadRun | RateRun],
    busy: Sequence[float],
) -> Point:
    answers = [answer for run in runs for answer in run.answers]
    firsts = [answer.first_token_seconds for answer in answers]
    paces = [pace for answer in answers if (pace := answer.seconds_per_token) is not None]
    every = [step for client in system.clients for step in client.steps]
    looked = [step.pre_draft for step in every if step.pre_draft is not None]
    steps, num_targets = [step for step in every if step.num_committed_tokens], len(system.targets)
    return Point(
        placement=name,
        load=load,
        num_requests=len(answers),
        tokens_per_second=fmean(run.tokens_per_second for run in runs),
        first_token_p50=float(np.percentile(firsts, 50)),
        first_token_p99=float(np.percentile(firsts, 99)),
        per_token_p50=float(np.percentile(paces or [0.0], 50)),
        per_token_p99=float(np.percentile(paces or [0.0], 99)),
        target_busy=fmean(busy[:num_targets]),
        drafter_busy=fmean(busy[num_targets:]) if system.drafters else 0.0,
        hit_rate=looked.count("hit") / len(looked) if looked else None,
        num_draft_tokens=fmean(step.num_tree_nodes for step in steps),
        acceptance_length=fmean(step.num_committed_tokens for step in steps),
        num_refused=sum(run.num_refused for run in runs if isinstance(run, RateRun)),
    )


def needed_acceptance(machine: CostedMachine, at_a_time: int, num_context: float) -> float:
    """Return the acceptance length from which drafts pay at best; infinity: they never do.

    That is, of drafts as long as one likes whose tokens are right alike. With drafts ahead, all of
    which are hits at best, a step takes as long as its slower half.
    """
    cached = round(at_a_time * num_context)
    plain = machine.verify_seconds(CallSize(at_a_time, at_a_time, 0, cached))
    least = math.inf
    for length in range(1, _MOST_DRAFTED + 1):
        rows = at_a_time * (1 + length)
        verify = machine.verify_seconds(CallSize(at_a_time, rows, 0, cached))
        draft = machine.draft_seconds(CallSize(at_a_time, at_a_time * length, 0, cached))
        step = max(verify, draft) if machine.overlap else verify + draft
        least = min(least, _acceptance_of(step / plain, length))
    return least


def _acceptance_of(tokens: float, length: int) -> float:
    """Return the acceptance length without end of drafts that yield `tokens` a step at a length."""
    if tokens >= length + 1:
        return math.inf
    low, high = 0.0, 1.0  # chances that a drafted token is right
    for _ in range(40):
        middle = (low + high) / 2
        reached = (1 - middle ** (length + 1)) / (1 - middle)
        low, high = (middle, high) if reached < tokens else (low, middle)
    return 1 / (1 - low)


@dataclass(frozen=True, slots=True)
class Plan:
    """The points of all placements."""

    placements: tuple[Placement, ...]
    points: tuple[Point, ...]
    rate: float | None  # requests per second of all pipelines
    answer_tokens: float
    prompt_tokens: float
    # by placement near its capacity: the shortest and longest median time to the first token, in
    # seconds, at 5 % fewer and more requests per second
    bands: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, placement: str) -> list[Point]:
        """Return the points of a placement at numbers of requests at a time."""
        return [
            point for point in self.points if point.placement == placement and point.load.at_a_time
        ]

    def capacity(self, placement: str) -> float:
        """Tokens per second at the most of all loads."""
        return max(point.tokens_per_second for point in self.of(placement))

    def num_pipelines(self, placement: str) -> int:
        """Return the number of pipelines that keep below BUSY at the rate; 1 without a rate."""
        wanted = (self.rate or 0.0) * self.answer_tokens
        return max(math.ceil(wanted / (BUSY * self.capacity(placement))), 1)

    def pays_up_to(self, placement: str) -> int:
        """Return the most requests at a time up to which drafts pay; 0: they do not at the first.

        Between two simulated numbers, the gain is taken to change evenly with their logarithm.
        """
        gains = [
            (own.load.at_a_time or 0, own.tokens_per_second / off.tokens_per_second)
            for own, off in zip(self.of(placement), self.of(OFF), strict=True)
        ]
        num_paying = next((n for n, (_, gain) in enumerate(gains) if gain < PAYS), len(gains))
        if num_paying == 0:
            return 0
        most, gain = gains[num_paying - 1]
        if num_paying == len(gains):
            return most
        too_many, less = gains[num_paying]
        return int(most * (too_many / most) ** ((gain - PAYS) / (gain - less)))


def make_plan(
    placements: Sequence[Placement],
    traffic: Traffic,
    loads: Sequence[int],
    rate: float | None,
    executor: Executor,
    on_point: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Simulate all placements at all loads, then at the rate, shared by the pipelines it needs.

    `on_point` is called with a description of each point as it ends.
    """

    def run(cases: Sequence[tuple[Placement, Load]]) -> Iterator[Point]:
        calls = [executor.submit(simulate, placement, traffic, load) for placement, load in cases]
        for (one, load), call in zip(cases, calls, strict=True):
            yield call.result()
            on_point(f"{one.name}, {load}")

    prompts, answers = traffic.mean_tokens
    # The longest first, so that no process is left with one at the end.
    closed = [(placement, Load(n)) for n in sorted(loads, reverse=True) for placement in placements]
    points = sorted(run(closed), key=lambda point: point.load.at_a_time or 0)
    plan = Plan(tuple(placements), tuple(points), rate, answers, prompts)
    opened = []
    if traffic.trace:
        opened = [(placement, Load()) for placement in placements]
    elif rate is not None:
        opened = [
            (placement, Load(rate=rate / plan.num_pipelines(placement.name)))
            for placement in placements
        ]
    found = tuple(run(opened))
    return replace(plan, points=(*plan.points, *found), bands=_bands(plan, found, run))


def _bands(
    plan: Plan,
    opened: Sequence[Point],
    run: Callable[[Sequence[tuple[Placement, Load]]], Iterator[Point]],
) -> dict[str, tuple[float, float]]:
    """Return the bands of the points near their placement's capacity."""
    placements = {placement.name: placement for placement in plan.placements}
    near = [
        point for point in opened if point.tokens_per_second > BUSY * plan.capacity(point.placement)
    ]
    cases = [
        (placements[point.placement], point.load.scaled(factor))
        for point in near
        for factor in (1 - _BAND, 1 + _BAND)
    ]
    times: dict[str, list[float]] = {point.placement: [point.first_token_p50] for point in near}
    for point in run(cases):
        times[point.placement].append(point.first_token_p50)
    return {name: (min(own), max(own)) for name, own in times.items()}
