"""An engine on a machine with other programs loses nothing by drafts, as its load changes."""

from __future__ import annotations

import asyncio
from statistics import mean

import pytest

from diffuspec.draft_server.session import Session
from tests.support.draft_engine import FakeEngine, TimedDrafter, make_hello, make_service
from tests.support.fakes import Strategy, never_right, sometimes_right
from tests.support.virtual_time import run_in_virtual_time

ROW_SECONDS = 0.003
NUM_STEPS = {2: 400, 8: 400, 32: 150}  # by requests: more of them take longer
BURST = ((3.0, 1.0), (1.0, 3.0))  # slowness, and seconds for which it lasts


def plain_seconds(num_requests: int) -> float:
    """Seconds of a step without drafts on a machine that runs nothing else."""
    return 0.02 + 0.004 * num_requests


async def speed_of(session: Session, load: int, first_step: int) -> tuple[float, int]:
    """Decode `load` requests; return the speed relative to no drafts, and the last step's id."""
    prompts = {f"{load}-{one}": [3 + one, 4, load] for one in range(load)}
    engine = FakeEngine(session, prompts, num_steps=first_step)
    engine.step_seconds, engine.row_seconds = plain_seconds(load), ROW_SECONDS
    clock = asyncio.get_running_loop().time
    num_plain = 0.0  # steps that would have ended without drafts

    async def disturb() -> None:
        while True:
            for slowness, seconds in BURST:
                engine.step_seconds = slowness * plain_seconds(load)
                engine.row_seconds = slowness * ROW_SECONDS
                await asyncio.sleep(seconds)

    other = asyncio.create_task(disturb())
    num_tokens = len(engine.output(f"{load}-0"))
    for _ in range(NUM_STEPS[load]):
        started, step_seconds = clock(), engine.step_seconds
        await engine.run(1)
        num_plain += (clock() - started) / step_seconds
    other.cancel()
    gained = sum([len(engine.output(name)) - num_tokens for name in prompts]) / load
    session.requests.end(prompts)
    return gained / num_plain, engine.num_steps


@pytest.mark.no_cover
@pytest.mark.parametrize("strategy", [never_right, sometimes_right])
def test_drafts_cost_no_more_than_they_gain(strategy: Strategy):
    async def main() -> list[float]:
        async with make_service(TimedDrafter(strategy, 0.008)) as service:
            session, _ = service.open(make_hello(max_silent_steps=64, max_requests=32))
            _, last_step = await speed_of(session, 2, 0)  # it learns what drafts are worth
            found = []
            for load in NUM_STEPS:
                speed, last_step = await speed_of(session, load, last_step)
                found.append(speed)
                expected = session.planner.costs.verify_seconds(load, load) / plain_seconds(load)
                assert 0.8 < expected < 3.5
            service.close(session)
            return found

    # Which load loses more is chance: plain steps may be measured in a burst.
    assert mean(run_in_virtual_time(main())) > 0.97
