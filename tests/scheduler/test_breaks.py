"""Failures of the coordinator's own code: each costs one decision, or the requests of the moment.

Afterwards the same coordinator answers, and all of its slots are free.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from diffuspec.core.errors import (
    BrokenEngineError,
    FatalRequestError,
    VerifierError,
    VerifierLostError,
)
from diffuspec.core.params import SpeculationParams
from diffuspec.scheduler import loop as loop_module
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.drafting import Drafting
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.loop import Loop
from diffuspec.scheduler.prefill import Prefill
from diffuspec.scheduler.pulse import MAX_SILENCE_SECONDS
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.verifications import Verifications
from diffuspec.speculation.acceptance import Acceptance
from diffuspec.speculation.call_costs import CallCosts
from diffuspec.speculation.costs import CostModel, DraftCosts
from diffuspec.speculation.curve import CostCurve
from diffuspec.speculation.guard import SpeculationGuard
from diffuspec.speculation.outcomes import OutcomeRanking
from tests.support.stage import FOREVER, SHORT, Stage, on_stage
from tests.support.virtual_time import run_in_virtual_time

_SLOTS = 4
_DEFAULT = SpeculationParams()

# What decides or learns: owner and method. Each is called in the runs below.
_DECISIONS: list[tuple[Any, str]] = [
    (loop_module, "schedule"),
    (Learner, "on_verdicts"),
    (Learner, "on_drafts"),
    (CostModel, "verify_seconds"),
    (CostModel, "plain_seconds"),
    (CostModel, "surprise"),
    (CostModel, "observe_verification"),
    (CallCosts, "observe"),
    (CallCosts, "seconds_of"),
    (CostCurve, "at_each"),
    (CostCurve, "observe"),
    (DraftCosts, "observe"),
    (SpeculationGuard, "observe"),
    (SpeculationGuard, "num_stopped_steps"),
    (SpeculationGuard, "wants_plain"),
    (Acceptance, "rank"),
    (Acceptance, "observe_no_draft"),
    (Acceptance, "observe_cut"),
    (Acceptance, "observe_verdict"),
    (OutcomeRanking, "observe"),
    (DrafterPool, "slow_down"),
]

# The loop's own work, in which a failure ends the requests of the moment.
_WORK: list[tuple[Any, str]] = [
    (Loop, "_snapshot"),
    (Loop, "_launch"),
    (Loop, "begin_step"),
    (Verifications, "begin"),
    (Verifications, "_settle"),
    (Verifications, "_on_verdicts"),
    (Verifications, "_take"),
    (Drafting, "begin"),
    (Drafting, "_start"),
    (Drafting, "_on_drafts"),
    (Drafting, "_take_all"),
    (Coordinator, "_finish_step"),
    (Coordinator, "_commit"),
    (Request, "verify_request"),
    (Request, "commit"),
    (Prefill, "take"),
]


class Injection:
    """Makes one call of a function fail: the one with this number, counted from 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int) -> None:
        self.num_calls = 0
        inner = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            if self.num_calls == at:
                raise ZeroDivisionError("injected")
            return inner(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)


async def is_whole(stage: Stage) -> bool:
    """Return whether a coordinator still answers in all of its slots at once, and keeps nothing."""
    await stage.check_requests(2 * _SLOTS, speculation=_DEFAULT)
    await asyncio.gather(*stage.coordinator.releases.tasks)
    await asyncio.sleep(0.01)
    return not stage.leftovers() and stage.is_empty


@pytest.mark.parametrize("at", [1, 9])
@pytest.mark.parametrize(
    ("owner", "name"), _DECISIONS, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_failure_while_deciding_or_learning_costs_one_decision(
    owner, name, at, quiet, monkeypatch
):
    async def main() -> None:
        async with on_stage(max_sequences=_SLOTS, overlap=True) as stage:
            await stage.coordinator.profile()
            injected = Injection(monkeypatch, owner, name, at)
            await stage.check_requests(2 * _SLOTS, speculation=_DEFAULT)
            assert injected.num_calls >= at, "the function was not called"
            assert await is_whole(stage)

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))


@pytest.mark.parametrize("at", [1, 5])
@pytest.mark.parametrize(
    ("owner", "name"), _WORK, ids=lambda value: getattr(value, "__name__", value)
)
def test_a_failure_of_the_loop_ends_its_requests_and_leaves_no_slot_taken(
    owner, name, at, quiet, monkeypatch
):
    async def main() -> None:
        injected = Injection(monkeypatch, owner, name, at)
        async with on_stage(max_sequences=_SLOTS, overlap=True) as stage:
            await stage.coordinator.profile()
            tasks = [stage.start([n, 7], SHORT, _DEFAULT) for n in range(2 * _SLOTS)]
            for n, result in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                assert isinstance(result, VerifierError) or result == stage.plain([n, 7])
            assert injected.num_calls >= at
            assert await is_whole(stage)

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))


def test_failures_are_counted_logged_once_and_followed_by_plain_decoding(caplog, monkeypatch):
    async def main() -> None:
        async with on_stage(max_sequences=_SLOTS) as stage:
            await stage.coordinator.profile()
            monkeypatch.setattr(Learner, "on_verdicts", lambda *_: 1 / 0)
            steps = await stage.steps(speculation=_DEFAULT)
            assert all(step.num_draft_tokens == 0 for step in steps[1:])
            count = stage.metric("decision_failures_total", what="learning from a verification")
            assert count == len(steps)

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))
    assert sum("ZeroDivisionError" in (record.exc_text or "") for record in caplog.records) == 1


def test_the_models_start_anew_from_the_profile(quiet, monkeypatch):
    async def main() -> None:
        async with on_stage(max_sequences=_SLOTS) as stage:
            await stage.coordinator.profile()
            learner = stage.coordinator.loop.learner
            profiled = learner.costs.verify_seconds(1, 1)
            learner.costs = learner.costs.observe_plain(1, 1e9, 1e9)
            learner.fail("a test", ValueError())
            assert learner.costs.verify_seconds(1, 1) == profiled

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))


def test_requests_in_flight_at_a_break_count_it_and_a_suspect_ends_for_good(quiet):
    async def main() -> None:
        for num_losses, kind in ((0, VerifierLostError), (2, FatalRequestError)):
            async with on_stage(max_sequences=_SLOTS) as stage:
                stage.verifier.gate.close()
                task = stage.start(num_losses=num_losses)
                await stage.verifier.gate.arrival()
                stage.coordinator.loop.events.put(lambda: [][0])
                with pytest.raises(kind):
                    await task
                assert len(stage.coordinator.admission.running) == 1, "the verifier still reads it"
                stage.verifier.gate.open()
                assert await is_whole(stage)

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))


def test_a_verification_that_fails_after_a_break_costs_later_requests_nothing(quiet):
    async def main() -> None:
        async with on_stage(None, max_sequences=_SLOTS) as stage:
            stage.verifier.gate.close()
            others = [stage.start([n]) for n in (2, 3)]
            await stage.verifier.gate.arrival()
            assert len(stage.coordinator.loop.in_verifier) == 2
            stage.coordinator.loop.events.put(lambda: [][0])
            await asyncio.wait(others)
            later = stage.start([4])
            await asyncio.sleep(0.01)
            stage.verifier.error = VerifierError("out of memory")
            stage.verifier.gate.open()
            await asyncio.sleep(0)
            stage.verifier.error = None
            assert await later == stage.plain([4])
            assert [type(one.exception()) for one in others] == [VerifierLostError] * 2
            assert await is_whole(stage)

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))


def test_after_three_breaks_within_a_minute_the_coordinator_gives_up(quiet):
    async def main() -> None:
        async with on_stage() as stage:
            told: list[BrokenEngineError] = []
            stage.coordinator.on_broken = told.append
            for _ in range(3):
                assert not told
                stage.coordinator.loop.events.put(lambda: [][0])
                await asyncio.sleep(10.0)
            assert told == [stage.coordinator.broken]
            with pytest.raises(BrokenEngineError, match="3 times within 60 seconds"):
                await stage.tokens()

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))


def test_breaks_that_are_far_apart_or_of_a_suspect_do_not_add_up(quiet):
    async def main() -> None:
        async with on_stage() as stage:
            for number in range(6):
                is_suspects = number % 2 == 1
                if is_suspects:
                    stage.verifier.gate.close()
                    task = stage.start(num_losses=2)
                    await stage.verifier.gate.arrival()
                stage.coordinator.loop.events.put(lambda: [][0])
                if is_suspects:
                    with pytest.raises(FatalRequestError):
                        await task
                    stage.verifier.gate.open()
                await asyncio.sleep(31.0)
            assert stage.coordinator.broken is None
            assert await stage.tokens() == stage.plain()

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))


def test_the_pulse_stops_with_the_loop_and_not_with_long_verifications(quiet):
    async def main() -> None:
        async with on_stage() as stage:
            pulse = stage.coordinator.pulse
            stage.verifier.gate.close()
            task = stage.start([1], FOREVER)
            await asyncio.sleep(100.0)
            assert pulse.is_beating
            stage.coordinator.loop.events.take = lambda until: asyncio.sleep(1e6)  # type: ignore
            stage.verifier.gate.open()
            await asyncio.sleep(MAX_SILENCE_SECONDS)
            assert pulse.is_beating
            await asyncio.sleep(3.0)
            assert not pulse.is_beating
            task.cancel()

    run_in_virtual_time(asyncio.wait_for(main(), 1e4))
