"""A service whose decoding breaks off three times ends, and its supervisor starts it again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from diffuspec.core.errors import BrokenEngineError
from diffuspec.engine.engine import Engine
from diffuspec.serve.server import bind, serve_engine
from diffuspec.serve.settings import ServeSettings
from tests.support.service import MODEL, fake_engine


async def break_off(engine: Engine, times: int) -> None:
    """Make the loop of an engine's coordinator fail."""
    assert engine._coordinator is not None
    for _ in range(times):
        engine._coordinator.loop.events.put(lambda: [][0])
        await asyncio.sleep(0.01)


async def test_serve_ends_with_an_error_after_three_breaks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    engine, ready = fake_engine(folder=tmp_path), asyncio.Event()
    with bind("127.0.0.1", 0) as bound:
        settings = ServeSettings(drain_seconds=0.1)
        serving = asyncio.create_task(
            serve_engine(engine, MODEL, settings, bound, lambda _: ready.set())
        )
        await ready.wait()
        await break_off(engine, 2)
        assert (await engine.complete([1, 2])).token_ids, "two breaks end only their requests"
        await break_off(engine, 1)
        with pytest.raises(BrokenEngineError, match="3 times within 60 seconds"):
            await serving
    assert "gives up" in caplog.text


async def test_an_engine_that_has_given_up_raises_and_can_be_closed(
    caplog: pytest.LogCaptureFixture,
):
    async with fake_engine() as engine:
        told: list[BrokenEngineError] = []
        engine.on_broken = told.append
        await break_off(engine, 3)
        assert len(told) == 1 and not engine.is_alive
        with pytest.raises(BrokenEngineError):
            await engine.complete([1, 2])
    assert "broke off" in caplog.text
