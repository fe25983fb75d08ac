"""Roles that sleep while the other works."""

from deploy.rested import rested
from diffuspec.core.params import SamplingParams
from diffuspec.engine import Engine
from diffuspec.pairs.tiny import tiny_config

SAMPLING = SamplingParams(max_tokens=12)


async def test_rested_roles_give_the_same_answer_and_sleep_while_the_other_works():
    with Engine.from_config(tiny_config()) as engine:
        async with rested(engine) as resting:
            answer = await resting.complete("Once upon a time", SAMPLING)
        expected = await engine.complete("Once upon a time", SAMPLING)
        await engine.stop()
    assert answer.token_ids == expected.token_ids
    work = [step.draft_seconds + step.verify_seconds for step in answer.steps[1:]]
    slept = [step.transport_seconds for step in answer.steps[1:]]
    assert all(seconds > 0 for seconds in slept)
    assert sum(slept) > 0.5 * sum(work)
