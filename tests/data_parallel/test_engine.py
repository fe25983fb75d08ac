"""Engines in processes of their own answer as one engine does, also when a process is killed."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from diffuspec.audit import audit
from diffuspec.core.errors import (
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RequestCancelledError,
    VerifierUnavailableError,
)
from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput
from diffuspec.core.types import RequestOutput
from diffuspec.data_parallel.engine import DataParallelEngine
from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from tests.support.engines import short_tiny_config
from tests.support.held_restarts import held_restarts

pytestmark = pytest.mark.process

QUESTIONS = ("What is the capital of France?", "What is 12 plus 30?", "Who are you?", "Hi!")
PROMPTS = [[{"role": "user", "content": text}] for text in QUESTIONS]
LONG = SamplingParams(max_tokens=300, ignore_eos=True)


def tokens(outputs: list[RequestOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


async def drain(stream: AsyncGenerator[RequestOutput]) -> list[RequestOutput]:
    return [output async for output in stream]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=40),
        SamplingParams(max_tokens=40, temperature=1.0, seed=7, top_p=0.9, logprobs=2),
        SamplingParams(max_tokens=20, stop=("is",), prompt_logprobs=1, bad_words=("the",)),
    ],
)
def test_answers_are_those_of_one_engine(engines, one, sampling):
    drafted = SpeculationParams(report_drafts=True)
    found, right = (each.generate(PROMPTS, sampling, drafted, n=2) for each in (engines, one))
    for mine, other in zip(found, right, strict=True):
        assert replace(mine, steps=()) == replace(other, steps=())


def test_both_engines_take_part(engines, one):
    before = [member.cpu_seconds() for member in engines._members.values()]
    assert len(before) == 2 and engines.info.max_sequences == 2 * one.info.max_sequences

    async def ask() -> list[int]:
        streams = [engines.stream(prompt, LONG) for prompt in PROMPTS]
        for stream in streams:
            await anext(stream)
        loads = [one.num_answers for one in engines._open_connections().values()]
        for stream in streams:
            await stream.aclose()
        return loads

    assert engines._run(ask()) == [2, 2]


def test_an_answer_that_is_read_slowly_waits_and_ends_as_it_should(engines, one):
    async def ask(engine: Engine | DataParallelEngine) -> list[int]:
        outputs: list[RequestOutput] = []
        async for output in engine.stream(PROMPTS[0], LONG, SpeculationParams(policy="off")):
            if len(outputs) in (0, 40):
                await asyncio.sleep(0.1)
            outputs.append(output)
        return tokens(outputs)

    assert engines._run(ask(engines)) == one._run(ask(one))


def test_an_answer_that_is_closed_ends_in_its_process(engines):
    async def ask() -> int:
        # More outputs than a process sends before they are read: it cannot have ended by itself.
        stream = engines.stream(PROMPTS[0], LONG, SpeculationParams(policy="off"))
        await anext(stream)
        running = (await engines.status()).num_running
        await stream.aclose()
        while (await engines.status()).requests:
            pass
        return running

    assert engines._run(ask()) == 1 and engines.num_requests == 0


def test_a_cancelled_answer_raises(engines):
    async def ask() -> None:
        stream = engines.stream(PROMPTS[0], LONG, request_id="mine")
        await anext(stream)
        assert engines.cancel("mine") and not engines.cancel("another")
        await drain(stream)

    with pytest.raises(RequestCancelledError, match="'mine' was cancelled"):
        engines._run(ask())


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([1, 10**6], SamplingParams()),
        ([1, 2], SamplingParams(max_tokens=10**6)),
        ([1, 2], SamplingParams(structured_output=StructuredOutput(regex="("))),
    ],
)
def test_what_one_engine_refuses_is_refused_alike(engines, one, prompt, sampling):
    said = []
    for engine in (engines, one):
        with pytest.raises(InvalidRequestError) as caught:
            engine.generate([prompt], sampling)
        said.append((type(caught.value), str(caught.value)))
    assert said[0] == said[1]


def test_structured_outputs_are_structured(engines):
    form = StructuredOutput(regex="[0-9]{3}")
    [answer] = engines.generate(PROMPTS[:1], SamplingParams(max_tokens=64, structured_output=form))
    assert len(answer.text) == 3 and answer.text.isdecimal()


def test_answers_can_be_audited(engines):
    [answer] = engines.generate(PROMPTS[:1], SamplingParams(max_tokens=20))
    ids = engines.encode(PROMPTS[0]).tolist()
    right, wrong = list(answer.token_ids), [*answer.token_ids[:3], 5]
    sampling = SamplingParams(max_tokens=20)
    assert engines._run(audit(engines, ids, sampling, right)) is None
    found = engines._run(audit(engines, ids, sampling, wrong))
    assert found is not None and found.position == 3


def test_series_have_the_label_of_their_engine(engines):
    text = engines._run(engines.series())
    families = {one.name: one for one in text_string_to_metric_families(text)}
    steps = families["diffuspec_generation_tokens"].samples
    assert {one.labels["engine"] for one in steps} == {"0", "1"}
    audits = families["diffuspec_audits"].samples
    assert "all" in {one.labels["engine"] for one in audits}


def test_models_that_cannot_be_loaded_are_reported_as_by_one_engine():
    config = parse_config({"target": {"path": "nowhere"}, "data_parallel_size": 2})
    with pytest.raises(ModelLoadError) as caught:
        Engine.from_config(config.model_copy(update={"data_parallel_size": 1}))
    with pytest.raises(ModelLoadError) as there:
        DataParallelEngine.from_config(config)
    assert str(there.value) == str(caught.value)


# The tests below end processes of the engines.


@pytest.mark.parametrize("sampling", [LONG, replace(LONG, temperature=1.0, seed=3)])
def test_an_answer_goes_on_token_for_token_when_its_process_is_killed(engines, one, sampling):
    async def ask() -> tuple[list[int], list[bool], int]:
        stream = engines.stream(PROMPTS[1], sampling)
        outputs = [await anext(stream), await anext(stream)]
        [killed] = [m for m in engines._members.values() if m.connection.num_answers]
        pid, connection = killed.process.pid, killed.connection
        with held_restarts():
            killed.process.kill()
            await connection.lost
            health = [role.is_healthy for role in (await engines.status()).roles]
        outputs += await drain(stream)
        while killed.connection is None:
            await engines._changed.wait()
        assert killed.process.pid != pid and not (await engines.status()).degraded_reasons
        return tokens(outputs), health, len(outputs)

    found, health, num_outputs = engines._run(ask())
    [right] = one.generate([PROMPTS[1]], sampling)
    assert found == list(right.token_ids) and num_outputs > 4
    assert health[0] and health.count(False) == 1


def test_a_process_that_hangs_is_ended_and_its_answer_goes_on_in_another(engines, one, monkeypatch):
    async def ask() -> list[int]:
        stream = engines.stream(PROMPTS[1], LONG)
        outputs = [await anext(stream)]
        [hung] = [m for m in engines._members.values() if m.connection.num_answers]
        os.kill(hung.process.pid, signal.SIGSTOP)
        outputs += await drain(stream)
        while hung.connection is None:
            await engines._changed.wait()
        return tokens(outputs)

    monkeypatch.setattr("diffuspec.data_parallel.member._SILENT_SECONDS", 0.5)
    [right] = one.generate([PROMPTS[1]], LONG)
    assert engines._run(ask()) == list(right.token_ids)


def test_a_process_in_a_long_verification_is_healthy(engines, monkeypatch):
    monkeypatch.setattr("diffuspec.data_parallel.member._STATUS_SECONDS", 0.1)
    busy = engines._members["0"].process.pid
    os.kill(busy, signal.SIGSTOP)  # it says nothing
    try:
        status = engines._run(engines.status())
    finally:
        os.kill(busy, signal.SIGCONT)
    assert all(role.is_healthy for role in status.roles) and not status.degraded_reasons


def test_without_any_process_requests_wait_for_the_next(engines, one, monkeypatch):
    async def ask() -> list[int]:
        stream = engines.stream(PROMPTS[2], LONG)
        outputs = [await anext(stream)]
        for member in engines._members.values():
            member.process.kill()
        return tokens(outputs + await drain(stream))

    [right] = one.generate([PROMPTS[2]], LONG)
    assert engines._run(ask()) == list(right.token_ids)
    coordinator = engines.config.coordinator.model_copy(
        update={"max_verifier_outage_seconds": 0.01}
    )
    monkeypatch.setattr(
        engines, "config", engines.config.model_copy(update={"coordinator": coordinator})
    )
    with pytest.raises(VerifierUnavailableError, match="no engine can answer now"):
        engines._run(kill_all_and_ask(engines))


async def kill_all_and_ask(engines: DataParallelEngine) -> None:
    lost = [connection.lost for connection in engines._open_connections().values()]
    for member in engines._members.values():
        member.process.kill()
    await asyncio.wait(lost)
    try:
        await engines.complete(PROMPTS[0], LONG)
    finally:
        while len(engines._open_connections()) < 2:
            await engines._changed.wait()


def test_a_stop_lets_answers_finish_and_refuses_others(engines):
    async def ask() -> tuple[int, int]:
        whole = engines.stream(PROMPTS[0], SamplingParams(max_tokens=60, ignore_eos=True))
        await anext(whole)
        rest = asyncio.create_task(drain(whole))
        stopping = asyncio.create_task(engines.stop(60.0))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="shutting down"):
            await engines.complete(PROMPTS[1])
        await stopping
        assert rest.done()
        stream = engines.stream(PROMPTS[0], LONG)
        await anext(stream)
        rest_of_long = asyncio.create_task(drain(stream))
        await asyncio.sleep(0)
        await engines.stop()
        with pytest.raises(RequestCancelledError):
            await rest_of_long
        return len(rest.result()), engines.num_requests

    num_outputs, num_requests = engines._run(ask())
    assert num_outputs > 1 and num_requests == 0


def test_a_process_ends_with_its_connection():
    engines = DataParallelEngine.from_config(short_tiny_config(), num_threads=1)
    [process] = [member.process for member in engines._members.values()]
    process.socket.close()  # as when this process is killed
    assert process.wait() == "ended with code 0"
    engines.close()
