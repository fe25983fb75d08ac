"""How requests of an engine are cancelled, and how an engine drains."""

import asyncio

import pytest

from diffuspec.core.errors import OverloadedError, RequestCancelledError
from diffuspec.engine.engine import Engine
from tests.support.engines import FOREVER, PROMPT, SHORT, make_engine


async def admission(engine: Engine, count: int = 1) -> None:
    """Wait until the engine has at least `count` requests, running or waiting."""
    while len(engine.requests()) < count:
        await asyncio.sleep(0.001)


async def test_cancelling_by_id_ends_that_request_with_an_error(engine):
    stream, other = engine.stream(PROMPT, FOREVER, request_id="a"), engine.stream(PROMPT, FOREVER)
    await anext(stream)
    await anext(other)
    assert engine.cancel("a") and not engine.cancel("b")
    with pytest.raises(RequestCancelledError, match="'a' was cancelled"):
        async for _ in stream:
            pass
    assert (await anext(other)).token_ids
    await other.aclose()
    assert not engine.cancel("a")


async def test_a_request_that_waits_can_be_cancelled_too(target_path):
    with make_engine(target_path("qwen2")) as engine:
        running = [engine.stream(PROMPT, FOREVER) for _ in range(3)]  # max_sequences
        for stream in running:
            await anext(stream)
        waiting = asyncio.ensure_future(engine.complete(PROMPT, SHORT, request_id="w"))
        await admission(engine, 4)
        assert engine.cancel("w")
        with pytest.raises(RequestCancelledError):
            await waiting
        await engine.stop()


async def test_an_engine_that_never_ran_has_nothing_to_cancel_and_can_be_stopped(target_path):
    with make_engine(target_path("qwen2")) as engine:
        assert not engine.cancel("a")
        await engine.stop(drain_seconds=60)


async def test_stopping_lets_running_requests_finish_and_refuses_new_ones(engine):
    answer = asyncio.ensure_future(engine.complete(PROMPT, SHORT))
    await admission(engine)
    stopping = asyncio.ensure_future(engine.stop(drain_seconds=60))
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="shutting down"):
        await engine.complete(PROMPT, SHORT)
    await stopping
    assert len((await answer).token_ids) == 12
    assert len((await engine.complete(PROMPT, SHORT)).token_ids) == 12  # it can be used again


async def test_stopping_cancels_requests_that_do_not_finish_in_time(engine):
    answer = asyncio.ensure_future(engine.complete(PROMPT, FOREVER))
    await admission(engine)
    await engine.stop(drain_seconds=0.01)
    with pytest.raises(RequestCancelledError):
        await answer
