"""Actors as their makers see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.placement import Place
from actors.settings import DeadlineSettings
from actors.supervision.role_actor import RoleActor


class Silent:
    """A handle to an actor that never answers."""

    is_healthy: Any

    def __init__(self) -> None:
        self.is_healthy = self

    def options(self, **_: object) -> Silent:
        return self

    async def remote(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.virtual_time
async def test_a_silent_actor_is_missed_within_the_time_that_the_deadlines_say() -> None:
    actor = RoleActor("mute", Silent(), Place("n", "127.0.0.1", (), 1), "")
    async with asyncio.timeout(DeadlineSettings(health_seconds=0.1).silence_seconds + 0.5):
        assert await actor.watch(0.1) == "it did not answer 3 times in a row"
