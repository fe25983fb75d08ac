"""No draft changes an answer: token for token, text, log-probabilities and reason of the end."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.config import CoordinatorConfig, DraftLengthConfig, TargetConfig
from diffuspec.coordinator import Coordinator
from diffuspec.errors import DrafterError, VerifierUnavailableError
from diffuspec.interfaces import Drafter, Verifier
from diffuspec.models.causal import CausalTarget
from diffuspec.text import TextStream
from diffuspec.types import (
    DraftLengthPolicy,
    DraftRequest,
    FinishReason,
    SamplingParams,
    SpeculationParams,
    TokenLogprobs,
)
from tests.checkpoints import byte_tokenizer
from tests.fakes import (
    DISHONEST,
    FAKE_TARGET,
    HONEST,
    FakeDrafter,
    FakeVerifier,
    Strategy,
    always_right,
    decode_plainly,
    oracle_of,
)

Arrival = Literal["alone", "together", "one after the other"]

BYTES = byte_tokenizer()
PLAIN = SpeculationParams(policy="off")

pytestmark = pytest.mark.timeout(300)  # thousands of tokens, on a machine at work
POLICIES: tuple[DraftLengthPolicy, ...] = ("paper", "cost_aware", "fixed", "off")
STRATEGIES = (*HONEST, *DISHONEST)


@dataclass(frozen=True)
class Job:
    prompt: tuple[int, ...]
    sampling: SamplingParams
    speculation: SpeculationParams = PLAIN


@dataclass(frozen=True)
class Answer:
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...]
    num_steps: int

    def assert_same(self, other: Answer) -> None:
        assert self.token_ids == other.token_ids
        assert (self.text, self.finish_reason) == (other.text, other.finish_reason)
        mine = [one.logprob for one in self.logprobs]
        assert mine == pytest.approx([one.logprob for one in other.logprobs], abs=1e-4)
        tops = [[logprob for _, logprob in one.top] for one in self.logprobs]
        for top, one in zip(tops, other.logprobs, strict=True):
            assert top == pytest.approx([logprob for _, logprob in one.top], abs=1e-4)


async def answer(coordinator: Coordinator, job: Job, name: str, has_begun: asyncio.Event) -> Answer:
    text = TextStream(BYTES, job.sampling.stop)
    prompt = np.array(job.prompt, np.int32)
    increments = []
    async for increment in coordinator.stream(
        prompt, job.sampling, job.speculation, text, request_id=name
    ):
        increments.append(increment)
        has_begun.set()
    return Answer(
        tuple(i for increment in increments for i in increment.token_ids),
        "".join(increment.text for increment in increments),
        increments[-1].finish_reason,
        tuple(one for increment in increments for one in increment.logprobs or ()),
        len(increments),
    )


async def answer_all(
    verifier: Verifier,
    drafter: Drafter | None,
    jobs: Sequence[Job],
    arrival: Arrival,
    **settings: Any,
) -> list[Answer]:
    """Answer all jobs; the name of a job's request begins with its number."""
    config = CoordinatorConfig(prefill_chunk_tokens=16, **settings)
    async with Coordinator(verifier, drafter, config, DraftLengthConfig()) as coordinator:
        tasks = []
        for number, job in enumerate(jobs):
            has_begun = asyncio.Event()
            task = asyncio.create_task(answer(coordinator, job, str(number), has_begun))
            tasks.append(task)
            if arrival == "alone":
                await task
            elif arrival == "one after the other":
                await has_begun.wait()
        return list(await asyncio.gather(*tasks))


def mixed(strategies: Sequence[Strategy]) -> Strategy:
    """Every request is drafted by a strategy of its own."""

    def draft(rng: random.Random, request: DraftRequest, truth: list[int]):
        number = int(request.request_id.split("-")[0])
        return strategies[number % len(strategies)](rng, request, truth)

    return draft


# ---- against a fake target: anything that the loop may do, thousands of times


@st.composite
def a_sampling(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.7])),
        seed=draw(st.integers(0, 3)),
        max_tokens=draw(st.integers(1, 40)),
        stop_token_ids=tuple(draw(st.sets(st.integers(3, 49), max_size=2))),
        ignore_eos=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, 0])),
    )


@st.composite
def a_job(draw: st.DrawFn) -> Job:
    speculation = SpeculationParams(
        policy=draw(st.sampled_from(POLICIES)),
        num_draft_tokens=draw(st.integers(1, 24)),
        max_nodes=draw(st.integers(1, 64)),
        drafter_weight=draw(st.sampled_from([0.5, "adaptive"])),
        num_outcomes=draw(st.sampled_from([0, 1, 3, 16, "auto"])),
    )
    prompt = tuple(draw(st.lists(st.integers(0, 49), min_size=1, max_size=40)))
    return Job(prompt, draw(a_sampling()), speculation)


@settings(max_examples=60)
@given(
    jobs=st.lists(a_job(), min_size=1, max_size=6),
    strategies=st.lists(st.sampled_from(STRATEGIES), min_size=1, max_size=6),
    max_sequences=st.integers(1, 4),
    arrival=st.sampled_from(["alone", "together", "one after the other"]),
    seed=st.integers(0, 100),
)
def test_no_draft_changes_what_a_target_says(jobs, strategies, max_sequences, arrival, seed):
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafter = FakeDrafter(oracle_of(verifier), mixed(strategies), seed)
    answers = asyncio.run(answer_all(verifier, drafter, jobs, arrival))
    assert_plain(verifier, jobs, answers)


def assert_plain(verifier: FakeVerifier, jobs: Sequence[Job], answers: Sequence[Answer]) -> None:
    for job, given_answer in zip(jobs, answers, strict=True):
        plain = decode_plainly(verifier, job.prompt, job.sampling)
        assert list(given_answer.token_ids) == plain
        if job.sampling.logprobs is not None:
            assert len(given_answer.logprobs) == len(plain)


@settings(max_examples=100)
@given(
    jobs=st.lists(a_job(), min_size=1, max_size=6),
    strategies=st.lists(st.sampled_from(STRATEGIES), min_size=1, max_size=6),
    max_sequences=st.integers(1, 4),
    num_draft_lanes=st.integers(1, 2),
    foresight=st.sampled_from([0.0, 0.6, 1.0]),
    arrival=st.sampled_from(["alone", "together", "one after the other"]),
    seed=st.integers(0, 100),
)
def test_no_draft_ahead_changes_what_a_target_says(
    jobs, strategies, max_sequences, num_draft_lanes, foresight, arrival, seed
):
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafter = FakeDrafter(oracle_of(verifier), mixed(strategies), seed, foresight)
    overlap = {"overlap": True, "num_draft_lanes": num_draft_lanes}
    answers = asyncio.run(answer_all(verifier, drafter, jobs, arrival, **overlap))
    assert_plain(verifier, jobs, answers)


class Unreliable:
    """Workers that lose calls, before the work or after it, and take their time."""

    def __init__(self, verifier: FakeVerifier, drafter: FakeDrafter, rate: float, seed: int):
        self._rng, self._rate = random.Random(seed), rate
        verifier.verify = self._losing(verifier.verify, VerifierUnavailableError("gone"))  # type: ignore[method-assign]
        drafter.draft = self._losing(drafter.draft, DrafterError("gone"))  # type: ignore[method-assign]

    def _losing(self, call: Any, error: Exception) -> Any:
        async def attempt(requests: Sequence[Any]) -> Any:
            await self._dawdle()
            if self._rng.random() < self._rate:
                raise error
            answers = await call(requests)
            await self._dawdle()
            if self._rng.random() < self._rate:
                raise error
            return answers

        return attempt

    async def _dawdle(self) -> None:
        for _ in range(self._rng.randrange(6)):
            await asyncio.sleep(0)


@settings(max_examples=60)
@given(
    jobs=st.lists(a_job(), min_size=1, max_size=6),
    strategies=st.lists(st.sampled_from(STRATEGIES), min_size=1, max_size=6),
    max_sequences=st.integers(1, 4),
    overlap=st.booleans(),
    rate=st.sampled_from([0.02, 0.2]),
    seed=st.integers(0, 100),
)
def test_no_failure_changes_what_a_target_says(
    jobs, strategies, max_sequences, overlap, rate, seed
):
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafter = FakeDrafter(oracle_of(verifier), mixed(strategies), seed)
    Unreliable(verifier, drafter, rate, seed)
    with (
        patch("diffuspec.verify_calls._FIRST_PAUSE_SECONDS", 0.0),
        patch("diffuspec.breaker._FIRST_PAUSE_SECONDS", 1e-4),
        patch("diffuspec.breaker._MAX_PAUSE_SECONDS", 1e-3),
    ):
        answers = asyncio.run(answer_all(verifier, drafter, jobs, "together", overlap=overlap))
    assert_plain(verifier, jobs, answers)


def test_right_drafts_save_steps():
    verifier = FakeVerifier()
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    job = Job((1, 2), sampling, SpeculationParams(policy="fixed", num_draft_tokens=9))
    drafter = FakeDrafter(oracle_of(verifier), always_right)
    [given_answer] = asyncio.run(answer_all(verifier, drafter, [job], "alone"))
    assert given_answer.num_steps == 6


# ---- against real targets with random weights

SAMPLINGS = {
    "greedy": SamplingParams(),
    "greedy, penalised": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4),
    "cool": SamplingParams(temperature=0.3, seed=1),
    "nucleus": SamplingParams(temperature=0.8, top_p=0.9, seed=2),
    "hot, top-k": SamplingParams(temperature=1.5, top_k=20, top_p=0.95, seed=3),
    "penalised": SamplingParams(
        temperature=0.7, seed=4, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.2
    ),
}
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def load_target(target_path: Callable[[str], Path]) -> Iterator[Callable[[str], CausalTarget]]:
    targets: dict[str, CausalTarget] = {}

    def load(family: str) -> CausalTarget:
        if family not in targets:
            config = TargetConfig(path=target_path(family), device="cpu", max_sequences=4)
            targets[family] = CausalTarget.load(config)
        return targets[family]

    yield load
    for target in targets.values():
        target.close()


def make_jobs(sampling: SamplingParams, seed: int) -> list[Job]:
    """One job for every policy and strategy; prompts of different lengths, some alike."""
    rng = random.Random(seed)
    prompts = [tuple(rng.randrange(256) for _ in range(length)) for length in (1, 3, 17, 40)]
    prompts.append(prompts[-1][:30])
    jobs = []
    for number, policy in enumerate(POLICIES[:3] * len(STRATEGIES)):
        speculation = SpeculationParams(policy=policy, num_draft_tokens=7, max_nodes=48)
        jobs.append(Job(prompts[number % len(prompts)], sampling, speculation))
    return jobs


def plain_answers(target: CausalTarget, jobs: Sequence[Job]) -> list[Answer]:
    """What the target says without drafts, each prompt once and alone."""
    wanted = {(job.prompt, job.sampling): None for job in jobs}
    plain = [Job(prompt, sampling) for prompt, sampling in wanted]
    answers = asyncio.run(answer_all(target, None, plain, "alone"))
    found = dict(zip(wanted, answers, strict=True))
    return [found[job.prompt, job.sampling] for job in jobs]


def drafter_that_knows(
    jobs: Sequence[Job], answers: Sequence[Answer], strategy: Strategy
) -> FakeDrafter:
    """A drafter with the plain answers at hand; past their end it goes on with anything."""

    def oracle(request: DraftRequest, num_tokens: int) -> list[int]:
        number = int(request.request_id.split("-")[0])
        start = len(request.prefix) - len(jobs[number].prompt)
        return [*answers[number].token_ids, *range(3, 200)][start : start + num_tokens]

    return FakeDrafter(oracle, strategy)


CASES = [("qwen2", name) for name in SAMPLINGS]
CASES += [("llama", "greedy"), ("llama", "nucleus"), ("qwen3", "greedy"), ("qwen3", "penalised")]


@pytest.mark.parametrize(("family", "name"), CASES)
def test_no_draft_changes_what_a_real_target_says(load_target, family, name):
    target = load_target(family)
    ends = {"max_tokens": MAX_TOKENS, "logprobs": 3, "ignore_eos": name == "greedy"}
    jobs = make_jobs(replace(SAMPLINGS[name], **ends), seed=len(name))
    expected = plain_answers(target, jobs)
    drafter = drafter_that_knows(jobs, expected, mixed(STRATEGIES))
    arrivals: list[Arrival] = ["together", "one after the other"]
    for arrival, overlap in zip(arrivals, (False, True), strict=True):
        answers = asyncio.run(answer_all(target, drafter, jobs, arrival, overlap=overlap))
        for plain, drafted in zip(expected, answers, strict=True):
            drafted.assert_same(plain)
        num_tokens = sum(len(one.token_ids) for one in answers)
        assert num_tokens > 1.3 * sum(one.num_steps for one in answers), "drafts were accepted"


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
def test_one_request_alone_is_answered_as_without_drafts(load_target, strategy):
    target = load_target("qwen2")
    sampling = replace(SAMPLINGS["nucleus"], max_tokens=MAX_TOKENS, logprobs=0)
    jobs = [job for job in make_jobs(sampling, seed=1) if len(job.prompt) == 17][:3]
    expected = plain_answers(target, jobs)
    drafter = drafter_that_knows(jobs, expected, strategy)
    answers = asyncio.run(answer_all(target, drafter, jobs, "alone"))
    for plain, drafted in zip(expected, answers, strict=True):
        drafted.assert_same(plain)


def test_stops_inside_accepted_runs_cut_at_the_same_place(load_target):
    target = load_target("qwen2")
    sampling = SamplingParams(temperature=1.0, seed=9, max_tokens=MAX_TOKENS, ignore_eos=True)
    [job] = make_jobs(sampling, seed=5)[:1]
    [whole] = plain_answers(target, [job])
    samplings = [replace(sampling, max_tokens=n) for n in range(1, MAX_TOKENS, 5)]
    samplings += [replace(sampling, stop_token_ids=(i,)) for i in whole.token_ids[::4]]
    for start, length in itertools.product(range(0, len(whole.text) - 4, 5), (1, 3)):
        samplings.append(replace(sampling, stop=(whole.text[start : start + length], "no")))
    speculation = SpeculationParams(policy="fixed", num_draft_tokens=12)
    jobs = [Job(job.prompt, one, speculation) for one in samplings]
    expected = plain_answers(target, jobs)
    drafter = drafter_that_knows(jobs, [whole] * len(jobs), always_right)
    answers = asyncio.run(answer_all(target, drafter, jobs, "together"))
    for plain, drafted in zip(expected, answers, strict=True):
        drafted.assert_same(plain)
        assert whole.text.startswith(drafted.text.rstrip("\ufffd"))
    assert {one.finish_reason for one in answers} == {FinishReason.STOP, FinishReason.LENGTH}
    assert sum(one.num_steps for one in answers) < sum(one.num_steps for one in expected) / 3
