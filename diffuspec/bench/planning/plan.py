"""A capacity plan: the real scheduler in simulated time, for several placements and loads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

import numpy as np

from diffuspec.bench.load import LoadAnswer, ask_all, ask_at_rate
from diffuspec.bench.planning.acceptance import Recording, with_drafts
from diffuspec.bench.planning.costs import CostedMachine
from diffuspec.bench.planning.loop import run_in_virtual_time
from diffuspec.bench.planning.machines import CallSize
from diffuspec.bench.planning.roles import INFO, SimulatedDrafter, SimulatedVerifier
from diffuspec.bench.planning.simulation import SimulatedClient, Simulation
from diffuspec.bench.planning.traffic import Answer, Regime, make_answer
from diffuspec.core.params import PLAIN, SpeculationParams

OFF, SHARED, APART = "off", "shared", "apart"  # the drafter: none, on the target's GPU, on its own
BUSY = 0.85  # utilisation above which times to the first token depend on chance
PAYS = 1.02  # least ratio of tokens/s that counts as a gain

_NUM_REQUESTS, _MOST_TOKENS = 120, 60_000  # limits of a point: fewer requests if answers are long
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
    num_gpus: int
    max_sequences: int
    has_drafts: bool = True


@dataclass(frozen=True, slots=True)
class Load:
    """A number of requests at a time, requests per second, or the trace's own times."""

    at_a_time: int | None = None
    rate: float | None = None

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
    count = traffic.num_requests or _num_requests(traffic, load)
    info = replace(INFO, max_sequences=placement.max_sequences, max_model_len=2**17)
    simulation = Simulation(
        placement.machine, traffic.answers(count), info, traffic.num_shared_tokens
    )
    speculation = SpeculationParams() if placement.has_drafts else PLAIN
    client = SimulatedClient(simulation, lambda _: speculation)
    async with simulation.coordinator as coordinator:
        await coordinator.profile()
        started, num_refused = time.monotonic(), 0
        before = [role.worker.busy_seconds for role in _roles(simulation)]
        if load.at_a_time is not None:
            closed = await ask_all(client, simulation.prompts, load.at_a_time, 0)
            answers, rate = closed.answers, closed.tokens_per_second
        else:
            times = [arrival.at for arrival in traffic.trace] if load.rate is None else None
            opened = await ask_at_rate(client, simulation.prompts, load.rate or 0.0, 0, times)
            answers, rate = opened.answers, opened.tokens_per_second
            num_refused = opened.num_refused
        seconds = time.monotonic() - started
    ended = [role.worker.busy_seconds for role in _roles(simulation)]
    busy = [(end - begin) / seconds for begin, end in zip(before, ended, strict=True)]
    return _point(placement.name, load, answers, client, rate, busy, num_refused)


def _roles(simulation: Simulation) -> list[SimulatedVerifier | SimulatedDrafter]:
    return [simulation.verifier, *simulation.drafters]


def _num_requests(traffic: Traffic, load: Load) -> int:
    if load == Load():
        return len(traffic.trace)
    sound = min(_NUM_REQUESTS, _MOST_TOKENS / traffic.mean_tokens[1])
    wanted = max(sound, _ROUNDS * (load.at_a_time or 0))
    return min(max(math.ceil(wanted), _LEAST_REQUESTS), MOST_REQUESTS)


def _point(
    name: str,
    load: Load,
    answers: Sequence[LoadAnswer],
    client: SimulatedClient,
    rate: float,
    busy: Sequence[float],
    num_refused: int,
) -> Point:
    firsts = [answer.first_token_seconds for answer in answers]
    paces = [pace for answer in answers if (pace := answer.seconds_per_token) is not None]
    looked = [step.pre_draft for step in client.steps if step.pre_draft is not None]
    steps = [step for step in client.steps if step.num_committed_tokens]
    return Point(
        placement=name,
        load=load,
        num_requests=len(answers),
        tokens_per_second=rate,
        first_token_p50=float(np.percentile(firsts, 50)),
        first_token_p99=float(np.percentile(firsts, 99)),
        per_token_p50=float(np.percentile(paces or [0.0], 50)),
        per_token_p99=float(np.percentile(paces or [0.0], 99)),
        target_busy=busy[0],
        drafter_busy=fmean(busy[1:]) if busy[1:] else 0.0,
        hit_rate=looked.count("hit") / len(looked) if looked else None,
        num_draft_tokens=fmean(step.num_tree_nodes for step in steps),
        acceptance_length=fmean(step.num_committed_tokens for step in steps),
        num_refused=num_refused,
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
        """Return the most requests at a time up to which drafts pay; 0: they do not at one."""
        pays = 0
        for own, off in zip(self.of(placement), self.of(OFF), strict=True):
            if own.tokens_per_second < PAYS * off.tokens_per_second:
                break
            pays = own.load.at_a_time or 0
        return pays


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
    return replace(plan, points=tuple(chain(points, run(opened))))
