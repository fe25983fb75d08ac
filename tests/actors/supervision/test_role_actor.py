"""Actors as their makers see them."""

import asyncio
from types import SimpleNamespace
from typing import Any, Self

import pytest
from ray.exceptions import RayActorError

from actors.placement import Place
from actors.settings import DeadlineSettings
from actors.supervision import role_actor, silence
from actors.supervision.role_actor import RoleActor


class Silent:
    """A handle to an actor that never answers."""

    is_healthy: Any
    run: Any
    stop: Any

    def __init__(self) -> None:
        self.is_healthy = self.run = self

    def options(self, **_: object) -> Self:
        return self

    async def remote(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.virtual_time
async def test_a_silent_actor_is_missed_within_the_time_that_the_deadlines_say(monkeypatch) -> None:
    monkeypatch.setattr(silence, "_is_reachable", lambda *_: asyncio.sleep(0, True))
    actor = RoleActor("mute", Silent(), Place("n", "127.0.0.1", (), 1), "", "127.0.0.1:1")
    async with asyncio.timeout(DeadlineSettings(health_seconds=0.1).silence_seconds + 0.5):
        assert await actor.watch(0.1) == "it did not answer 3 times in a row"


class Dead(Silent):
    """A handle to an actor whose process ends while it is watched."""

    def __init__(self) -> None:
        super().__init__()
        self.run = SimpleNamespace(remote=self.end)

    async def end(self) -> None:
        raise RayActorError


@pytest.mark.virtual_time
async def test_the_end_of_an_actor_s_process_is_told_without_a_health_check() -> None:
    actor = RoleActor("dead", Dead(), Place("n", "127.0.0.1", (), 1), "", "127.0.0.1:1")
    assert "experienced an error" in await actor.watch(interval_seconds=1e9)


async def test_an_actor_is_killed_even_if_its_stop_is_cancelled(monkeypatch) -> None:
    killed: list[object] = []
    monkeypatch.setattr(role_actor, "kill", killed.append)
    handle = Silent()
    handle.stop = handle
    actor = RoleActor("mute", handle, Place("n", "127.0.0.1", (), 1), "", "127.0.0.1:1")
    stopping = asyncio.create_task(actor.stop(60.0))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled() and killed == [handle]
