"""No draft changes the answer of a real target: tokens, text, log-probabilities, finish reason.

The drafter knows the plain answers, and drafts well or badly on purpose.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig, TargetConfig
from diffuspec.core.interfaces import Drafter, Verifier
from diffuspec.core.params import DraftLengthPolicy, SamplingParams, SpeculationParams
from diffuspec.core.types import DraftRequest, FinishReason
from diffuspec.models.target import CausalTarget
from diffuspec.scheduler.coordinator import Coordinator
from tests.support.checkpoints import byte_tokenizer
from tests.support.fakes import DISHONEST, EOS, HONEST, FakeDrafter, Strategy, always_right, mixed
from tests.support.gguf_files import write_gguf
from tests.support.lossless import Answer, Arrival, Job, answer_all, ask_coordinator
from tests.support.quantized_models import FORMATS, W8A8, save_quantized

SAMPLINGS = {
    "greedy": SamplingParams(),
    "greedy, penalised": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4),
    "cool": SamplingParams(temperature=0.3, seed=1),
    "nucleus": SamplingParams(temperature=0.8, top_p=0.9, seed=2),
    "hot, top-k": SamplingParams(temperature=1.5, top_k=20, top_p=0.95, seed=3),
    "penalised": SamplingParams(
        temperature=0.7, seed=4, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.2
    ),
    "restricted": SamplingParams(
        temperature=1.2,
        seed=5,
        min_p=0.02,
        min_tokens=9,
        logit_bias={EOS: 4, **dict.fromkeys(range(100, 200), -3)},
        bad_words_token_ids=tuple((one, other) for one in range(0, 60, 5) for other in (70, 90)),
        allowed_token_ids=(EOS, *range(180)),
    ),
}
POLICIES: tuple[DraftLengthPolicy, ...] = ("paper", "cost_aware", "fixed")
STRATEGIES = (*HONEST, *DISHONEST)
GGUF_FILES = {
    "simple blocks": ("Q4_0", "Q8_0", "Q4_1"),
    "K blocks": ("Q4_K", "Q6_K", "Q5_K", "Q4_K"),
}
QUANTIZED = {
    "AWQ": FORMATS["AWQ, groups of 32"],
    "GPTQ": FORMATS["GPTQ"],
    "W4A16": FORMATS["W4A16, zeros"],
    "W8A8": W8A8,
}
ROUNDING = "activations in 8 bits"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]


@dataclass(frozen=True)
class Served:
    """A target under test, in this process or on a cluster, and the same target in this process."""

    verifier: Verifier
    reference: Verifier
    tokenizer: Tokenizer
    max_tokens: int = 32
    plainly: dict[Job, Answer] = field(default_factory=dict)  # answered so far
    every: int = 1  # 2 or 4 for a part of all jobs, in which each strategy and sampling occurs


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        *("qwen2", "llama", "qwen3", "llama, bfloat16"),
        *GGUF_FILES,
        *QUANTIZED,
        *("simple blocks, bfloat16", "K blocks, bfloat16", "AWQ, bfloat16"),
        f"K blocks, {ROUNDING}",
        f"AWQ, {ROUNDING}",
    ],
)
async def served(
    request: pytest.FixtureRequest,
    target_path: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Served]:
    family, _, option = request.param.partition(", ")
    dtype: Any = "" if option == ROUNDING else option
    folder = tmp_path_factory.mktemp("stored")
    if family in GGUF_FILES:
        path = write_gguf(folder / "tiny.gguf", kinds=GGUF_FILES[family])
    elif family in QUANTIZED:
        path = folder / "model"
        save_quantized(path, QUANTIZED[family])
    else:
        path = target_path(family)
    config = TargetConfig(
        path=path,
        device="cpu",
        dtype=dtype or "float32",
        exact=bool(dtype),
        quantize_activations=option == ROUNDING,
        max_sequences=4,
    )
    target = CausalTarget.load(config)
    yield Served(target, target, byte_tokenizer(), every=2 if family == "qwen2" else 4)
    target.close()


async def answers_of(
    served: Served,
    verifier: Verifier,
    drafter: Drafter | None,
    jobs: Sequence[Job],
    arrival: Arrival,
    **settings: Any,
) -> list[Answer]:
    config = CoordinatorConfig(prefill_chunk_tokens=16, **settings)
    async with Coordinator(verifier, drafter, config, DraftLengthConfig()) as coordinator:
        return await answer_all(ask_coordinator(coordinator, served.tokenizer), jobs, arrival)


async def plain_answers(served: Served, jobs: Sequence[Job]) -> list[Answer]:
    """Return the answers without drafts, each prompt decoded once and alone."""
    plain = [Job(job.prompt, job.sampling) for job in jobs]
    unknown = [job for job in dict.fromkeys(plain) if job not in served.plainly]
    answers = await answers_of(served, served.reference, None, unknown, "alone")
    served.plainly.update(zip(unknown, answers, strict=True))
    return [served.plainly[job] for job in plain]


def make_jobs(samplings: Sequence[SamplingParams], seed: int) -> list[Job]:
    """Return one job for every strategy and sampling, the policies in turn.

    Prompts differ in length; two share a beginning.
    """
    rng = random.Random(seed)
    prompts = [tuple(rng.randrange(256) for _ in range(length)) for length in (1, 3, 17, 40)]
    prompts.append(prompts[-1][:30])
    jobs: list[Any] = []
    for row, sampling in enumerate(samplings):
        for number in range(len(STRATEGIES)):
            policy = POLICIES[(row + number) % len(POLICIES)]
            speculation = SpeculationParams(policy=policy, num_draft_tokens=7, max_nodes=48)
            jobs.append(Job(prompts[len(jobs) % len(prompts)], sampling, speculation))
    return jobs


def drafter_that_knows(
    jobs: Sequence[Job], answers: Sequence[Answer], strategy: Strategy
) -> FakeDrafter:
    """Return a drafter that knows the plain answers, and makes tokens up after their end."""

    def oracle(request: DraftRequest, num_tokens: int) -> list[int]:
        number = int(request.request_id.split("-")[0])
        start = len(request.prefix) - len(jobs[number].prompt)
        return [*answers[number].token_ids, *range(3, 200)][start : start + num_tokens]

    return FakeDrafter(oracle, strategy)


@pytest.mark.parametrize(
    ("overlap", "arrival"),
    [(False, "together"), (True, "one after the other")],
    ids=["sequential", "overlapped"],
)
async def test_no_draft_changes_what_a_real_target_says(served, overlap, arrival):
    ends = {"max_tokens": served.max_tokens, "logprobs": 3}
    samplings = [replace(one, ignore_eos=one.is_greedy, **ends) for one in SAMPLINGS.values()]
    jobs = make_jobs(samplings, seed=7)[:: served.every]
    expected = await plain_answers(served, jobs)
    drafter = drafter_that_knows(jobs, expected, mixed(STRATEGIES))
    answers = await answers_of(served, served.verifier, drafter, jobs, arrival, overlap=overlap)
    for plain, drafted in zip(expected, answers, strict=True):
        drafted.assert_same(plain)
    num_tokens = sum(len(one.token_ids) for one in answers)
    assert num_tokens > 1.3 * sum(one.num_steps for one in answers), "drafts were accepted"


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.__name__)
async def test_one_request_alone_is_answered_as_without_drafts(served, strategy):
    sampling = replace(SAMPLINGS["nucleus"], max_tokens=served.max_tokens, logprobs=0)
    [job] = [job for job in make_jobs([sampling], seed=1) if len(job.prompt) == 17][:1]
    jobs = [replace(job, speculation=replace(job.speculation, policy=p)) for p in POLICIES]
    expected = await plain_answers(served, jobs)
    drafter = drafter_that_knows(jobs, expected, strategy)
    answers = await answers_of(served, served.verifier, drafter, jobs, "alone")
    for plain, drafted in zip(expected, answers, strict=True):
        drafted.assert_same(plain)


@pytest.mark.parametrize("served", ["qwen2"], indirect=True)  # ends are cut above the target
async def test_stops_inside_accepted_runs_cut_at_the_same_place(served):
    length = served.max_tokens
    sampling = SamplingParams(temperature=1.0, seed=9, max_tokens=length, ignore_eos=True)
    job = make_jobs([sampling], seed=5)[0]
    [whole] = await plain_answers(served, [job])
    samplings = [replace(sampling, max_tokens=n) for n in range(1, length, 5)]
    samplings += [replace(sampling, stop_token_ids=(i,)) for i in whole.token_ids[::4]]
    for start, size in itertools.product(range(0, len(whole.text) - 4, 5), (1, 3)):
        samplings.append(replace(sampling, stop=(whole.text[start : start + size], "no")))
    speculation = SpeculationParams(policy="fixed", num_draft_tokens=12)
    jobs = [Job(job.prompt, one, speculation) for one in samplings]
    expected = await plain_answers(served, jobs)
    drafter = drafter_that_knows(jobs, [whole] * len(jobs), always_right)
    answers = await answers_of(served, served.verifier, drafter, jobs, "together")
    for plain, drafted in zip(expected, answers, strict=True):
        drafted.assert_same(plain)
        assert whole.text.startswith(drafted.text.rstrip("\ufffd"))
    assert {one.finish_reason for one in answers} == {FinishReason.STOP, FinishReason.LENGTH}
    assert sum(one.num_steps for one in answers) < sum(one.num_steps for one in expected) / 3
