"""No draft changes what several ranks of a target say, to the last bit, nor does a killed rank.

Drafted answers are compared with plain ones of the same number of ranks: one rank and two may
differ in 16 bits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig, TargetConfig
from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.core.interfaces import Drafter, TargetInfo, Verifier
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.pairs.tiny import TARGET
from diffuspec.scheduler.coordinator import Coordinator
from tests.lossless.test_targets import SAMPLINGS, drafter_that_knows, make_jobs
from tests.models.tensor_parallel.processes import Follower, Ranks
from tests.support.checkpoints import save_target
from tests.support.fakes import HONEST, mixed
from tests.support.lossless import Answer, Arrival, Job, answer_all, ask_coordinator

MAX_TOKENS = 10
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 64}

pytestmark = [pytest.mark.process, pytest.mark.asyncio(loop_scope="module")]


@dataclass(frozen=True)
class Case:
    """Ranks of a target; the jobs, and the answers without drafts, each given alone."""

    ranks: Ranks
    jobs: Sequence[Job]
    plain: Sequence[Answer]

    def check(self, drafted: Sequence[Answer]) -> None:
        for one, other in zip(drafted, self.plain, strict=True):
            assert one.token_ids == other.token_ids
            assert one.logprobs == other.logprobs
        num_steps = sum(one.num_steps for one in drafted)
        assert num_steps < 0.8 * sum(one.num_steps for one in self.plain), "drafts were accepted"


@pytest.fixture(scope="module")
def followers() -> Any:
    followers = [Follower() for _ in range(3)]
    yield followers
    for follower in followers:
        follower.close()


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        *("embedded, float32, 2", "embedded, bfloat16, 2"),
        *("random, float32, 2", "random, bfloat16, 2"),
        *("random, float32, 4", "random, bfloat16, 4"),
    ],
)
async def case(
    request: pytest.FixtureRequest,
    followers: Sequence[Follower],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Case]:
    model, dtype, num_ranks = request.param.split(", ")
    path = TARGET
    if model == "random":
        path = save_target(tmp_path_factory.mktemp("target"), "qwen2", **HEADS)
    config = TargetConfig(path=path, device="cpu", dtype=dtype, max_sequences=4)
    ranks = Ranks(config, followers[: int(num_ranks) - 1])
    await asyncio.to_thread(ranks.__enter__)
    assert ranks.share.runner.is_exact and ranks.share.runner.takes_trees
    samplings = [replace(one, max_tokens=MAX_TOKENS, logprobs=3) for one in SAMPLINGS.values()]
    jobs = make_jobs(samplings, seed=7)[::9]  # one for each sampling
    plainly = [Job(job.prompt, job.sampling) for job in jobs]
    plain = await _answers(ranks.target, None, plainly, "alone")
    yield Case(ranks, jobs, plain)
    await asyncio.to_thread(ranks.__exit__)
    assert {follower.hear() for follower in ranks.followers} == {"left"}


@pytest.mark.parametrize("arrival", ["together", "one after the other"])
async def test_no_draft_changes_what_ranks_say(case: Case, arrival: Arrival) -> None:
    drafter = drafter_that_knows(case.jobs, case.plain, mixed(HONEST))
    case.check(await _answers(case.ranks.target, drafter, case.jobs, arrival))


@pytest.mark.parametrize("case", ["random, bfloat16, 4"], indirect=True)
async def test_ranks_that_replace_lost_ones_say_the_same(case: Case) -> None:
    drafter = drafter_that_knows(case.jobs, case.plain, mixed(HONEST))
    verifier = _Replaced(case.ranks, kill_at_step=4)
    case.check(await _answers(verifier, drafter, case.jobs, "together"))
    assert verifier.num_replaced == 1


async def _answers(
    verifier: Verifier, drafter: Drafter | None, jobs: Sequence[Job], arrival: Arrival
) -> list[Answer]:
    config = CoordinatorConfig(prefill_chunk_tokens=16, overlap=arrival != "together")
    async with Coordinator(verifier, drafter, config, DraftLengthConfig()) as coordinator:
        return await answer_all(ask_coordinator(coordinator), jobs, arrival)


class _Replaced:
    """A `Verifier` over ranks of which the last is killed in a step; then all are replaced."""

    def __init__(self, ranks: Ranks, kill_at_step: int) -> None:
        self._ranks, self._kill_at_step = ranks, kill_at_step
        self.num_steps = self.num_replaced = 0

    @property
    def info(self) -> TargetInfo:
        return self._ranks.target.info

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        self.num_steps += 1
        if self.num_steps == self._kill_at_step:
            self._ranks.followers[-1].close()
        try:
            return await self._ranks.target.verify(requests)
        except VerifierUnavailableError:
            self.num_replaced += 1
            await asyncio.to_thread(self._replace)
            raise

    async def release(self, request_id: str) -> None:
        await self._ranks.target.release(request_id)

    def _replace(self) -> None:
        self._ranks.__exit__()
        for follower in self._ranks.followers[:-1]:
            assert follower.hear().startswith("lost")
        self._ranks.__enter__()
