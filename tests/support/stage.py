"""A coordinator over fake workers, for tests of the whole loop, and what many of them share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import (
    Draft,
    DraftRequest,
    RequestOutput,
    StepStats,
    Verdict,
    VerifyRequest,
)
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.request import Request, Submission
from diffuspec.speculation.acceptance import Acceptance, SharedAcceptance
from diffuspec.speculation.policies import FixedLength
from diffuspec.telemetry.trace import Tracer
from tests.support.fakes import (
    EOS,
    FAKE_TARGET,
    FakeDrafter,
    FakeVerifier,
    Strategy,
    decode_plainly,
    oracle_of,
    sometimes_right,
)

PROMPT = [3, 1, 4, 1, 5]
SHORT = SamplingParams(max_tokens=24, ignore_eos=True)
LONG = SamplingParams(max_tokens=120, ignore_eos=True)
FOREVER = SamplingParams(max_tokens=400, ignore_eos=True)

OFF = SpeculationParams(policy="off")
FIXED = SpeculationParams(policy="fixed", num_draft_tokens=4)
PRE_DRAFTING = replace(FIXED, num_outcomes=4)  # where the coordinator's overlap is on
ALL_OUTCOMES = replace(FIXED, num_outcomes=16)

UNAVAILABLE = VerifierUnavailableError("the group is being rebuilt")


@dataclass
class Stage:
    """A coordinator with its fake workers."""

    coordinator: Coordinator
    verifier: FakeVerifier
    drafter: Any

    def stream(
        self,
        prompt: Sequence[int] = PROMPT,
        sampling: SamplingParams = SHORT,
        speculation: SpeculationParams = FIXED,
        request_id: str | None = None,
        committed: Sequence[int] = (),
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        ids: Any = np.array(prompt, np.int64)  # ids beyond int32 are refused, too
        return self.coordinator.stream(
            ids,
            sampling,
            speculation,
            request_id=request_id,
            committed_token_ids=np.array(committed, np.int32),
            num_losses=num_losses,
        )

    async def tokens(self, *args: Any, **kwargs: Any) -> list[int]:
        return await rest_of(self.stream(*args, **kwargs))

    def start(self, *args: Any, **kwargs: Any) -> asyncio.Task[list[int]]:
        return asyncio.create_task(self.tokens(*args, **kwargs))

    async def steps(
        self,
        prompt: Sequence[int] = PROMPT,
        sampling: SamplingParams = SHORT,
        speculation: SpeculationParams = FIXED,
    ) -> list[StepStats]:
        """Return the steps of a request; its tokens must be those of plain decoding."""
        outputs = [output async for output in self.stream(prompt, sampling, speculation)]
        tokens = [i for output in outputs for i in output.token_ids]
        assert tokens == self.plain(prompt, sampling)
        return [output.step for output in outputs]

    async def check_requests(self, count: int, **kwargs: Any) -> None:
        """Run requests side by side; their tokens must be those of plain decoding."""
        tasks = [self.start([n, 7], SHORT, **kwargs) for n in range(count)]
        for n, task in enumerate(tasks):
            assert await task == self.plain([n, 7])

    def plain(self, prompt: Sequence[int] = PROMPT, sampling: SamplingParams = SHORT) -> list[int]:
        return decode_plainly(self.verifier, prompt, sampling)

    def metric(self, name: str, **labels: str) -> float:
        registry = self.coordinator.metrics.registry
        return registry.get_sample_value(f"diffuspec_{name}", labels) or 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no request waits for a slot or holds one."""
        return not self.metric("num_requests_running") + self.metric("num_requests_waiting")

    def leftovers(self) -> dict[str, Any]:
        """Return what the coordinator and its loop still keep of requests, by the place."""
        coordinator, loop = self.coordinator, self.coordinator.loop
        places: dict[str, Any] = {
            "admission": list(coordinator.admission),
            "releases": coordinator.releases.tasks,
            "running requests": list(loop.requests),
            "verification": loop.verifications.in_flight,
        }
        for lane in coordinator.pool.lanes:
            places |= {
                f"call of {lane.name}": lane.call,
                f"held by {lane.name}": not lane.is_gone and lane.held_request_ids,
            }
        return {place: kept for place, kept in places.items() if kept}


async def rest_of(stream: AsyncGenerator[RequestOutput]) -> list[int]:
    return [i async for output in stream for i in output.token_ids]


def make_request(
    prompt: Sequence[int] = PROMPT,
    sampling: SamplingParams = SHORT,
    speculation: SpeculationParams = FIXED,
    length: int | None = 4,
) -> Request:
    """Return a request that no coordinator knows. length: of its drafts; None: by cost."""
    wanted = Submission(np.array(prompt, np.int32), sampling, speculation)
    acceptance = Acceptance(SharedAcceptance(32))
    return Request("a", wanted, (EOS,), FixedLength(length), acceptance)


def fake_drafter(strategy: Strategy = sometimes_right, hit_rate: float = 1.0) -> FakeDrafter:
    """Return a drafter that knows the fake target's tokens."""
    return FakeDrafter(oracle_of(FakeVerifier()), strategy, hit_rate=hit_rate)


def fake_drafters(count: int) -> list[FakeDrafter]:
    return [fake_drafter() for _ in range(count)]


def pool_of(drafters: Sequence[Drafter]) -> DrafterPool:
    pool = DrafterPool()
    for number, drafter in enumerate(drafters):
        pool.add(drafter, f"drafter {number}")
    return pool


@asynccontextmanager
async def on_stage(
    drafter: Drafter | Mapping[str, Drafter] | DrafterPool | Literal["fake"] | None = "fake",
    *,
    verifier: FakeVerifier | None = None,
    max_sequences: int = 2,
    max_model_len: int = 512,
    num_pages: int | None = None,
    tracer: Tracer | None = None,
    **config: Any,
) -> AsyncIterator[Stage]:
    """Run a coordinator; the "fake" drafter is right sometimes, None is plain decoding."""
    sizes = {"max_sequences": max_sequences, "max_model_len": max_model_len, "num_pages": num_pages}
    info = replace(FAKE_TARGET, **sizes)  # type: ignore[arg-type]
    verifier = verifier or FakeVerifier(info)
    if drafter == "fake":
        drafter = fake_drafter()
    assert not isinstance(drafter, str)
    async with Coordinator(
        verifier, drafter, CoordinatorConfig(**config), DraftLengthConfig(), tracer=tracer
    ) as coordinator:
        yield Stage(coordinator, verifier, drafter)


def on_a_pool(
    drafters: Sequence[Drafter] = (), **settings: Any
) -> AbstractAsyncContextManager[Stage]:
    """Run a coordinator whose drafter is a pool."""
    return on_stage(pool_of(drafters), max_sequences=8, **settings)


def overlapped(
    strategy: Strategy = sometimes_right, hit_rate: float = 1.0, **settings: Any
) -> AbstractAsyncContextManager[Stage]:
    """Run a coordinator that pre-drafts for requests that ask for it."""
    return on_stage(fake_drafter(strategy, hit_rate), **{"overlap": True, **settings})


# ---- workers that are slow, or fail


def slow_down(worker: Any, call: Literal["draft", "verify"], seconds: float) -> None:
    """Give a fake's calls a duration: for each draft of a call, or for a whole verification."""
    inner = getattr(worker, call)

    async def slow(requests: Sequence[Any]) -> Any:
        await asyncio.sleep(seconds * (len(requests) if call == "draft" else 1))
        return await inner(requests)

    setattr(worker, call, slow)


def fail_verifications(stage: Stage, count: int) -> None:
    """Make the verifier unavailable for the next `count` verifications."""
    verify, left = stage.verifier.verify, [count]

    async def failing(requests: Sequence[VerifyRequest]) -> list[Verdict]:
        if left[0]:
            left[0] -= 1
            raise UNAVAILABLE
        return await verify(requests)

    stage.verifier.verify = failing  # type: ignore[method-assign]


# ---- what the drafter is asked


class DraftCall(NamedTuple):
    """The number of drafts asked for in one call."""

    num_awaited: int  # for requests that wait for a draft
    num_pre_drafts: int  # for requests that are being verified


def watch_drafts(
    stage: Stage, drafter: Any = None, on_pre_drafts: Callable[[], None] = lambda: None
) -> list[DraftCall]:
    """Return a list that grows with each call of a drafter, by default the stage's only one."""
    calls: list[DraftCall] = []
    drafter = drafter or stage.drafter
    draft = drafter.draft

    async def watched(requests: Sequence[DraftRequest]) -> list[Draft]:
        states = {one.request_id: one.state for one in stage.coordinator.requests()}
        num_awaited = sum(states.get(one.request_id) == "drafting" for one in requests)
        calls.append(DraftCall(num_awaited, len(requests) - num_awaited))
        if num_awaited < len(requests):
            on_pre_drafts()
        drafts: list[Draft] = await draft(requests)
        return drafts

    drafter.draft = watched
    return calls


def hold_first_pre_drafts(stage: Stage, drafter: Any = None) -> None:
    """Close a drafter's gate before its first call with pre-drafts."""
    drafter, is_first = drafter or stage.drafter, iter([True])

    def close_once() -> None:
        if next(is_first, False):
            drafter.gate.close()

    watch_drafts(stage, drafter, close_once)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds: 200 turns of the event loop, then 5 seconds at most."""
    for pause in (*[0.0] * 200, *[0.01] * 500):
        if condition():
            return
        await asyncio.sleep(pause)
    raise AssertionError("it did not happen within 200 turns of the event loop and 5 seconds")
