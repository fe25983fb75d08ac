"""A target and its drafter, end to end: the answers are those of plain decoding.

The pairs here have random weights; test_embedded_pair.py and test_cluster.py bring others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Protocol

import pytest
import pytest_asyncio

from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import RequestCancelledError
from diffuspec.core.params import DraftLengthPolicy, SamplingParams, SpeculationParams, TreeShape
from diffuspec.core.types import Prompt, RequestOutput
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from tests.support.heads import save_dflash, save_eagle, save_eagle3, save_hydra, save_medusa
from tests.support.lossless import PLAIN, Answer, Arrival, Job, answer_all

POLICIES: tuple[DraftLengthPolicy, ...] = ("cost_aware", "paper", "fixed")
SHAPES: tuple[TreeShape, ...] = ("best_first", "beams", "path")
WEIGHTS: tuple[float | Literal["adaptive"], ...] = (0.5, "adaptive")
SPECULATIONS = [
    SpeculationParams(policy=policy, tree_shape=shape, num_draft_tokens=11, drafter_weight=weight)
    for (policy, shape), weight in zip(
        itertools.product(POLICIES, SHAPES), itertools.cycle(WEIGHTS), strict=False
    )
]
NUMS_OUTCOMES: tuple[int | Literal["auto"], ...] = ("auto", 1, 4)  # pre-drafted, with overlap
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "cool": {"temperature": 0.3, "seed": 1},
    "nucleus": {"temperature": 0.8, "top_p": 0.9, "seed": 2},
    "hot, top-k, penalised": {
        "temperature": 1.5,
        "top_k": 30,
        "seed": 3,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
    },
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]


class Roles(Protocol):
    """An engine or a pipeline."""

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str | None,
    ) -> AsyncGenerator[RequestOutput]: ...

    def cancel(self, request_id: str) -> bool | Awaitable[bool]: ...


@dataclass(frozen=True)
class Pair:
    """A pair under test, in this process or on a cluster, and the same pair in this process."""

    roles: Roles
    reference: Roles
    prompts: list[Prompt]
    max_tokens: int
    min_acceptance_length: float  # of the steps of greedy answers that had drafts
    overlap: bool
    plainly: dict[SamplingParams, list[Answer]] = field(default_factory=dict)  # answered so far
    drafters: Sequence[str | None] = (None,)  # chosen in turn

    def speculations(self, offset: int = 0) -> list[SpeculationParams]:
        """Return one for each prompt: all policies, shapes and drafters in turn."""
        nums_outcomes = itertools.cycle(NUMS_OUTCOMES if self.overlap else [0])
        chosen = itertools.islice(itertools.cycle(SPECULATIONS), offset, None)
        drafters = itertools.islice(itertools.cycle(self.drafters), offset, None)
        return [
            replace(one, num_outcomes=number, drafter=drafter)
            for one, number, drafter, _ in zip(
                chosen, nums_outcomes, drafters, self.prompts, strict=False
            )
        ]

    async def answers(
        self,
        sampling: SamplingParams,
        speculations: Sequence[SpeculationParams],
        arrival: Arrival = "together",
    ) -> list[Answer]:
        """Return the answers to all prompts, the speculations in turn."""
        return await self._answers(self.roles, sampling, speculations, arrival)

    async def plain(self, sampling: SamplingParams) -> list[Answer]:
        if sampling not in self.plainly:
            answers = await self._answers(self.reference, sampling, [PLAIN], "together")
            self.plainly[sampling] = answers
        return self.plainly[sampling]

    async def _answers(
        self,
        roles: Roles,
        sampling: SamplingParams,
        speculations: Sequence[SpeculationParams],
        arrival: Arrival,
    ) -> list[Answer]:
        turns = zip(self.prompts, itertools.cycle(speculations), strict=False)
        jobs = [Job(prompt, sampling, speculation) for prompt, speculation in turns]
        return await answer_all(lambda job, name: _ask(roles, job, name), jobs, arrival)


def _ask(roles: Roles, job: Job, name: str) -> AsyncGenerator[RequestOutput]:
    return roles.stream(job.prompt, job.sampling, job.speculation, name)


@pytest.fixture(scope="module")
def plainly() -> dict[SamplingParams, list[Answer]]:
    """What the target of the first two pairs says by itself."""
    return {}


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["random", "random, overlapped", "random, heads"],
)
async def pair(
    request: pytest.FixtureRequest,
    target_path: Callable[[str], Path],
    drafter_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    plainly: dict[SamplingParams, list[Answer]],
) -> AsyncIterator[Pair]:
    overlap = "overlapped" in request.param
    if request.param == "random, heads":
        folder = tmp_path_factory.mktemp("heads")
        config, prompts = _random_heads(target_path("qwen2"), drafter_path, folder)
        plainly = {}  # its prompts are fewer
    else:
        config, prompts = _random_pair(target_path("qwen2"), drafter_path, overlap)
    with Engine.from_config(config) as engine:
        drafters = (None, *config.named_drafters)
        yield Pair(engine, engine, prompts, 16, 1.0, overlap, plainly, drafters=drafters)
        await engine.stop()


def _random_pair(target: Path, drafter: Path, overlap: bool) -> tuple[EngineConfig, list[Prompt]]:
    config = parse_config(
        {
            "target": {"path": target, "device": "cpu", "max_sequences": 4},
            "drafter": {"path": drafter, "device": "cpu"},
            "search": {"retrieval": not overlap},
            "coordinator": {"prefill_chunk_tokens": 24, "overlap": overlap},
        }
    )
    return config, [f"{'ab ' * number}and so on" for number in range(18)]


def _random_heads(target: Path, drafter: Path, path: Path) -> tuple[EngineConfig, list[Prompt]]:
    """A target with draft heads: guesses among ten of 258 tokens are right now and then.

    A causal LM drafts beside them.
    """
    save_medusa(path / "medusa", 32, 264)
    save_hydra(path / "hydra", 32, None)
    save_eagle(path / "eagle", 32, 264)
    save_eagle3(path / "eagle3", 32, 264)
    save_dflash(path / "dflash")
    kinds = ("medusa", "hydra", "eagle", "eagle2", "eagle3", "dflash", "dflash_remote")
    paths = [path / kind.removesuffix("2").removesuffix("_remote") for kind in kinds]
    sections = [{"kind": k, "path": p} for k, p in zip(kinds, paths, strict=True)]
    sections[-1]["device"] = "cpu"  # the others are beside the target
    first, *others = [
        *sections,
        {"kind": "sps", "path": drafter, "device": "cpu", "min_confidence": 0},
    ]
    config = parse_config(
        {
            "target": {"path": target, "device": "cpu", "max_sequences": 4},
            "drafter": first,
            "drafters": {str(one["kind"]): one for one in others},
            "coordinator": {"prefill_chunk_tokens": 24},
        }
    )
    return config, [f"{'ab ' * number}and so on" for number in range(0, 18, 4)]


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_drafting_changes_the_speed_and_nothing_else(pair, name):
    sampling = SamplingParams(max_tokens=pair.max_tokens, logprobs=1, **SAMPLINGS[name])
    plain = await pair.plain(sampling)
    drafted = await pair.answers(sampling, pair.speculations(len(name)))
    for expected, found in zip(plain, drafted, strict=True):
        found.assert_same(expected)
        assert sum(step.num_committed_tokens for step in found.steps) == len(found.token_ids)
        assert {step.fallback for step in found.steps} == {None}
    if name == "greedy":
        steps = [step for one in drafted for step in one.steps if step.num_draft_tokens]
        assert fmean(step.num_committed_tokens for step in steps) >= pair.min_acceptance_length
    results = [step.pre_draft for answer in drafted for step in answer.steps]
    assert any(results) == pair.overlap


async def test_a_stop_string_cuts_where_plain_decoding_cuts(pair):
    whole = await pair.plain(SamplingParams(max_tokens=pair.max_tokens))
    text = next(answer.text for answer in whole if len(answer.text) > 12)
    stops = tuple({text[6:8], text[9:12]})
    sampling = SamplingParams(max_tokens=pair.max_tokens, stop=stops)
    plain = await pair.plain(sampling)
    drafted = await pair.answers(sampling, pair.speculations(), "one after the other")
    for expected, found in zip(plain, drafted, strict=True):
        found.assert_same(expected)
        assert not any(stop in found.text for stop in stops)


async def test_requests_that_are_cancelled_leave_the_others_as_they_are(pair):
    """Some are cancelled before their first token and some after it, beside requests that go on."""
    sampling = SamplingParams(max_tokens=pair.max_tokens // 2, ignore_eos=True)
    plain = await pair.plain(sampling)

    async def ask(number: int, speculation: SpeculationParams) -> tuple[int, ...]:
        is_cancelled, is_begun = number % 3 == 0, number % 2 == 0
        received: list[int] = []
        job = Job(pair.prompts[number], sampling, speculation)
        async with contextlib.aclosing(_ask(pair.roles, job, str(number))) as stream:
            if is_cancelled and not is_begun:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(anext(stream), 0.01)
                return ()
            async for output in stream:
                received += output.token_ids
                if is_cancelled:
                    break
        return tuple(received)

    turns = enumerate(pair.speculations())
    answers = await asyncio.gather(*(ask(number, one) for number, one in turns))
    for number, (expected, tokens) in enumerate(zip(plain, answers, strict=True)):
        assert tokens == expected.token_ids[: len(tokens)]
        assert number % 3 == 0 or tokens == expected.token_ids


async def test_a_request_is_cancelled_by_its_id(pair):
    sampling = SamplingParams(max_tokens=200, ignore_eos=True)
    job = Job(pair.prompts[0], sampling, pair.speculations()[0])
    stream = _ask(pair.roles, job, "to-be-cancelled")
    async with contextlib.aclosing(stream):
        await anext(stream)
        cancelled = pair.roles.cancel("to-be-cancelled")
        assert cancelled if isinstance(cancelled, bool) else await cancelled
        with pytest.raises(RequestCancelledError):
            async for _ in stream:
                pass
