"""No draft and no failure changes an answer: properties of the loop over fake workers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.algorithm.cache_model import CacheModel
from diffuspec.algorithm.retrieval import Retrieval
from diffuspec.algorithm.search import PathSearch
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.drafter_config import (
    LookaheadConfig,
    PromptLookupConfig,
    SuffixAutomatonConfig,
)
from diffuspec.core.errors import DrafterError, VerifierUnavailableError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import (
    DraftLengthPolicy,
    SamplingParams,
    SpeculationParams,
)
from diffuspec.drafters import LocalDrafter
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.drafters.lookahead import LookaheadDrafter
from diffuspec.drafters.prompt_lookup import PromptLookupDrafter
from diffuspec.drafters.samd import SuffixAutomatonDrafter
from diffuspec.drafters.samd_recycling import SamdRecyclingDrafter
from diffuspec.drafters.token_recycling import TokenRecyclingDrafter
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.scheduler.drafters import DrafterPool
from tests.support.fakes import (
    DISHONEST,
    FAKE_TARGET,
    HONEST,
    FakeDrafter,
    FakeVerifier,
    always_right,
    decode_plainly,
    mixed,
    oracle_of,
)
from tests.support.lattice_fakes import FakeCausalProxy, FakeLatticeModel
from tests.support.lossless import Answer, Arrival, Job, answer_all, ask_coordinator
from tests.support.stage import pool_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # thousands of tokens, on a busy machine
POLICIES: tuple[DraftLengthPolicy, ...] = ("paper", "cost_aware", "fixed", "off")
STRATEGIES = (*HONEST, *DISHONEST)


async def answers_of(
    verifier: FakeVerifier,
    drafter: FakeDrafter | LocalDrafter | DrafterPool | Mapping[str, Drafter],
    jobs: Sequence[Job],
    arrival: Arrival,
    **settings: Any,
) -> list[Answer]:
    config = CoordinatorConfig(prefill_chunk_tokens=16, **settings)
    async with Coordinator(verifier, drafter, config, DraftLengthConfig()) as coordinator:
        return await answer_all(ask_coordinator(coordinator), jobs, arrival)


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
        prediction=tuple(draw(st.lists(st.integers(0, 49), max_size=20))),
    )
    prompt = tuple(draw(st.lists(st.integers(0, 49), min_size=1, max_size=40)))
    return Job(prompt, draw(a_sampling()), speculation)


JOBS = st.lists(a_job(), min_size=1, max_size=6)
ARRIVALS = st.sampled_from(["alone", "together", "one after the other"])
FAKES: dict[str, Any] = {
    "jobs": JOBS,
    "strategies": st.lists(st.sampled_from(STRATEGIES), min_size=1, max_size=6),
    "max_sequences": st.integers(1, 4),
    "seed": st.integers(0, 100),
}


@settings(max_examples=60)
@given(**FAKES, arrival=ARRIVALS)
def test_no_draft_changes_what_a_target_says(jobs, strategies, max_sequences, arrival, seed):
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafter = FakeDrafter(oracle_of(verifier), mixed(strategies), seed)
    answers = asyncio.run(answers_of(verifier, drafter, jobs, arrival))
    assert_plain(verifier, jobs, answers)


def assert_plain(verifier: FakeVerifier, jobs: Sequence[Job], answers: Sequence[Answer]) -> None:
    for job, given_answer in zip(jobs, answers, strict=True):
        prompt: Any = job.prompt
        plain = decode_plainly(verifier, prompt, job.sampling)
        assert list(given_answer.token_ids) == plain
        if job.sampling.logprobs is not None:
            assert len(given_answer.logprobs) == len(plain)


@settings(max_examples=100)
@given(
    **FAKES,
    num_drafters=st.integers(1, 3),
    hit_rate=st.sampled_from([0.0, 0.6, 1.0]),
    arrival=ARRIVALS,
)
def test_no_pre_draft_changes_what_a_target_says(
    jobs, strategies, max_sequences, num_drafters, hit_rate, arrival, seed
):
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafters = [
        FakeDrafter(oracle_of(verifier), mixed(strategies), seed, hit_rate)
        for _ in range(num_drafters)
    ]
    answers = asyncio.run(answers_of(verifier, pool_of(drafters), jobs, arrival, overlap=True))
    assert_plain(verifier, jobs, answers)


class Unreliable:
    """Workers that lose calls, before the work or after it, and take their time."""

    def __init__(
        self, verifier: FakeVerifier, drafters: Sequence[FakeDrafter], rate: float, seed: int
    ):
        self._rng, self._rate = random.Random(seed), rate
        verifier.verify = self._losing(verifier.verify, VerifierUnavailableError("gone"))  # type: ignore[method-assign]
        for drafter in drafters:
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
    **FAKES,
    num_drafters=st.integers(1, 3),
    overlap=st.booleans(),
    rate=st.sampled_from([0.02, 0.2]),
)
def test_no_failure_changes_what_a_target_says(
    jobs, strategies, max_sequences, num_drafters, overlap, rate, seed
):
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafters = [
        FakeDrafter(oracle_of(verifier), mixed(strategies), seed) for _ in range(num_drafters)
    ]
    Unreliable(verifier, drafters, rate, seed)
    with (
        patch("diffuspec.scheduler.verifications._FIRST_PAUSE_SECONDS", 0.0),
        patch("diffuspec.scheduler.calls._PAUSES", (1e-4, 1e-3)),
    ):
        answers = asyncio.run(
            answers_of(verifier, pool_of(drafters), jobs, "together", overlap=overlap)
        )
    assert_plain(verifier, jobs, answers)


@settings(max_examples=60)
@given(
    jobs=JOBS,
    num_tokens=st.integers(2, 5),
    overlap=st.booleans(),
    arrival=ARRIVALS,
    kind=st.sampled_from(
        ["pld", "samd", "token_recycling", "samd_recycling", "lookahead", "merged"]
    ),
)
def test_no_repetition_that_is_found_changes_what_a_target_says(
    jobs, num_tokens, overlap, arrival, kind
):
    """The target knows a few tokens only, so that everything stands in the text already."""
    info = replace(FAKE_TARGET, vocab_size=num_tokens, eos_token_ids=(0,))
    verifier = FakeVerifier(info)
    samd = SuffixAutomatonDrafter(SuffixAutomatonConfig(), (0,), 2, [[1, 0, 1, 1, 0] * 9])
    recycling = TokenRecyclingDrafter(info, verifier)
    proxy = FakeCausalProxy()
    search = PathSearch(
        proxy,
        eos_token_ids=(0,),
        retrieval=Retrieval(2, (0,)),
        cache=CacheModel(proxy, 0.7, 2),
    )
    merged = DiffuSpecDrafter(FakeLatticeModel(oracle_of(verifier)), search)
    drafters: dict[str, LocalDrafter] = {
        "pld": PromptLookupDrafter(PromptLookupConfig(), (0,)),
        "samd": samd,
        "token_recycling": recycling,
        "samd_recycling": SamdRecyclingDrafter(samd, recycling, 3),
        "merged": merged,
        "lookahead": LookaheadDrafter(LookaheadConfig(), info, verifier),
    }
    jobs = [
        replace(
            job,
            prompt=tuple(i % num_tokens for i in job.prompt),
            speculation=replace(
                job.speculation,
                prediction=tuple(i % num_tokens for i in job.speculation.prediction),
            ),
            sampling=replace(job.sampling, stop_token_ids=()),
        )
        for job in jobs
    ]
    drafter = drafters[kind]
    answers = asyncio.run(answers_of(verifier, drafter, jobs, arrival, overlap=overlap))
    assert_plain(verifier, jobs, answers)


@settings(max_examples=25)
@given(
    **FAKES | {"strategies": st.lists(st.sampled_from(STRATEGIES), min_size=2, max_size=3)},
    hit_rate=st.sampled_from([0.0, 0.6]),
    overlap=st.booleans(),
    arrival=ARRIVALS,
)
def test_no_choice_among_drafters_changes_what_a_target_says(
    jobs, strategies, max_sequences, hit_rate, overlap, arrival, seed
):
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafters: dict[str, Drafter] = {
        f"drafter-{number}": FakeDrafter(oracle_of(verifier), strategy, seed, hit_rate)
        for number, strategy in enumerate(strategies)
    }
    drafters["recycling"] = TokenRecyclingDrafter(FAKE_TARGET, verifier)
    names = [None, *drafters]
    jobs = [
        replace(job, speculation=replace(job.speculation, drafter=names[number % len(names)]))
        for number, job in enumerate(jobs, seed)
    ]
    answers = asyncio.run(answers_of(verifier, drafters, jobs, arrival, overlap=overlap))
    assert_plain(verifier, jobs, answers)


def test_right_drafts_save_steps():
    verifier = FakeVerifier()
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    job = Job((1, 2), sampling, SpeculationParams(policy="fixed", num_draft_tokens=9))
    drafter = FakeDrafter(oracle_of(verifier), always_right)
    [given_answer] = asyncio.run(answers_of(verifier, drafter, [job], "alone"))
    assert given_answer.num_steps == 6


def test_the_longest_drafts_are_accepted_whole():
    verifier = FakeVerifier()
    sampling = SamplingParams(max_tokens=258, ignore_eos=True)
    speculation = SpeculationParams(policy="fixed", num_draft_tokens=128, max_nodes=200)
    drafter = FakeDrafter(oracle_of(verifier), always_right)
    job = Job((1, 2), sampling, speculation)
    [given_answer] = asyncio.run(answers_of(verifier, drafter, [job], "alone"))
    assert_plain(verifier, [job], [given_answer])
    assert [step.num_accepted_tokens for step in given_answer.steps] == [128, 128]
