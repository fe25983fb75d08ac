"""Requests at which workers are lost: tried alone after two losses, ended at the third."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

import pytest

from diffuspec.core.errors import (
    DrafterLostError,
    FatalRequestError,
    VerifierLostError,
    VerifierUnavailableError,
)
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import Draft, DraftRequest, Verdict, VerifyRequest
from tests.support.stage import (
    LONG,
    PRE_DRAFTING,
    SHORT,
    Stage,
    fail_verifications,
    on_stage,
    overlapped,
    rest_of,
    slow_down,
    until,
)

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]

KILLER = [44, 44]  # the prompt of the request that kills workers
LOST = VerifierLostError("rank 0 has died")


def lose_verifier_at(
    stage: Stage, is_deadly: Callable[[VerifyRequest], bool], first: int = 0
) -> list[int]:
    """Lose the verifier at deadly requests; return the batch sizes of its lost verifications."""
    verify, lost = stage.verifier.verify, list[int]()

    async def deadly(requests: Sequence[VerifyRequest]) -> list[Verdict]:
        if any(map(is_deadly, requests)):
            await asyncio.sleep(0.01)
            lost.append(len(requests))
            raise LOST
        return await verify(requests)

    stage.verifier.verify = deadly  # type: ignore[method-assign]
    return lost


def is_killer(request: VerifyRequest | DraftRequest) -> bool:
    return [*request.prefix[:2]] == KILLER


def is_killer_at_its_tenth_token(request: VerifyRequest) -> bool:
    return is_killer(request) and len(request.prefix) + request.tree.num_nodes >= 12


@pytest.mark.parametrize("is_deadly", [is_killer, is_killer_at_its_tenth_token])
@pytest.mark.parametrize("drafter", ["fake", None])
async def test_a_request_that_kills_verifiers_ends_at_the_third_loss_and_others_go_on(
    is_deadly, drafter, quiet
):
    async with on_stage(drafter, max_sequences=4) as stage:
        lost = lose_verifier_at(stage, is_deadly)
        slow_down(stage.verifier, "verify", 0.01)
        others = [stage.start([n], LONG) for n in range(3)]
        killer = stage.start(KILLER, LONG)
        late = [stage.start([n], SHORT) for n in range(10, 14)]
        with pytest.raises(FatalRequestError, match="lost 3 times"):
            await killer
        assert len(lost) == 3 and lost[-1] == 1, "the last time alone"
        for n, task in enumerate(others):
            assert await task == stage.plain([n], LONG)
        for n, task in enumerate(late, start=10):
            assert await task == stage.plain([n])
        assert len(lost) == 3
        await until(lambda: not stage.leftovers())
        assert stage.metric("request_failed_total", error="FatalRequestError") == 1


async def test_an_innocent_suspect_is_alone_until_it_ends_and_then_others_go_on(quiet):
    async with on_stage(max_sequences=4, overlap=True) as stage:
        num_losses = iter(range(2))
        lose_verifier_at(stage, lambda one: one.prefix[0] == 7 and next(num_losses, 2) < 2)
        together = [stage.start([n], SHORT, PRE_DRAFTING) for n in (7, 8)]
        await until(
            lambda: [
                request for request in stage.coordinator.admission if request.losses.is_suspect
            ]
        )
        first = len(stage.verifier.batches)
        later = [stage.start([n], SHORT) for n in (20, 21)]
        assert [await task for task in together] == [stage.plain([7]), stage.plain([8])]
        starts = [{int(one.prefix[0]) for one in batch} for batch in stage.verifier.batches[first:]]
        order = [names for names, _ in itertools.groupby(starts)]
        assert order[:2] == [{7}, {8}]
        assert [await task for task in later] == [stage.plain([20]), stage.plain([21])]


async def test_a_request_that_was_lost_twice_elsewhere_runs_alone_and_others_wait(quiet):
    async with on_stage(max_sequences=4) as stage:
        running = stage.start([1], LONG)
        await until(lambda: len(stage.verifier.batches) > 2)
        suspects = [stage.start([n], SHORT, num_losses=2) for n in (2, 3)]
        waiting = stage.start([4], SHORT)
        answers = await asyncio.gather(running, *suspects, waiting)
        plain = [stage.plain([n]) for n in (2, 3, 4)]
        assert answers == [stage.plain([1], LONG), *plain]
        starts = [{int(one.prefix[0]) for one in batch} for batch in stage.verifier.batches]
        assert [names for names, _ in itertools.groupby(starts)] == [{1}, {2}, {3}, {4}]


async def test_a_third_loss_elsewhere_is_refused():
    async with on_stage() as stage:
        with pytest.raises(FatalRequestError):
            await stage.tokens(num_losses=3)
        assert not stage.verifier.batches


async def test_a_verifier_that_cannot_be_reached_is_not_lost_at_a_request(quiet):
    async with on_stage(max_sequences=4) as stage:
        fail_verifications(stage, 6)
        await stage.check_requests(3)


async def test_an_outage_that_is_too_long_tells_whether_a_verifier_was_lost_at_the_request(quiet):
    async with on_stage(None, max_verifier_outage_seconds=5.0) as stage:
        errors = iter([LOST])

        async def failing(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            raise next(errors, VerifierUnavailableError("it is started again"))

        stage.verifier.verify = failing  # type: ignore[method-assign]
        with pytest.raises(VerifierLostError):
            await stage.tokens()
        with pytest.raises(VerifierUnavailableError) as caught:
            await stage.tokens()
        assert not isinstance(caught.value, VerifierLostError)


async def test_a_request_whose_reader_waits_does_not_keep_a_suspect_from_its_turn():
    async with on_stage(None, max_sequences=2) as stage:
        unread = stage.stream([1], SamplingParams(max_tokens=200, ignore_eos=True))
        await anext(unread)
        assert await stage.tokens([2], num_losses=2) == stage.plain([2])
        await unread.aclose()


async def test_a_suspect_that_waits_for_its_reader_keeps_nobody_waiting():
    async with on_stage(None, max_sequences=4) as stage:
        unread = stage.stream([1], SamplingParams(max_tokens=200, ignore_eos=True), num_losses=2)
        first = await anext(unread)
        assert await stage.tokens([2]) == stage.plain([2])
        assert await stage.tokens([3], num_losses=2) == stage.plain([3])
        rest = await rest_of(unread)
        sampling = SamplingParams(max_tokens=200, ignore_eos=True)
        assert [*first.token_ids, *rest] == stage.plain([1], sampling)


# ---- drafters


def lose_drafter_at_killer(stage: Stage) -> list[int]:
    """Lose the drafter at every draft for the killer; return the batch sizes of lost calls."""
    draft, lost = stage.drafter.draft, list[int]()

    async def deadly(requests: Sequence[DraftRequest]) -> list[Draft]:
        if any(map(is_killer, requests)):
            lost.append(len(requests))
            raise DrafterLostError("its process has ended")
        drafts: list[Draft] = await draft(requests)
        return drafts

    stage.drafter.draft = deadly
    return lost


@pytest.mark.parametrize("speculation", [None, PRE_DRAFTING])
async def test_a_request_that_kills_drafters_goes_on_without_drafts(speculation, quiet):
    async with overlapped(max_sequences=4) as stage:
        lost = lose_drafter_at_killer(stage)
        slow_down(stage.verifier, "verify", 0.1)
        options = {} if speculation is None else {"speculation": speculation}
        assert await stage.tokens(KILLER, LONG, **options) == stage.plain(KILLER, LONG)
        assert len(lost) == 2
        before = len(stage.drafter.batches)
        assert await stage.tokens([1], LONG, **options) == stage.plain([1], LONG)
        assert len(stage.drafter.batches) > before, "the drafter drafts for others"
