"""Clients take places by turns, however many callers each has."""

from __future__ import annotations

import asyncio

import pytest

from diffuspec.core.errors import OverloadedError, ShuttingDownError
from diffuspec.core.places import Places


class Callers:
    """Callers that take places, and end one after another."""

    def __init__(self, number: int, max_waiting: int, max_each: int | None = None) -> None:
        self.places = Places(number, max_waiting, "grammars wait", max_each)
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, *names: str) -> None:
        """Add callers: the first letter of a name is its client."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._call(name))
            await settled()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settled()

    async def _call(self, name: str) -> None:
        await self.places.take(name[0])
        self.begun.append(name)
        await self.ends[name].wait()
        self.places.free(name[0])


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_clients_take_turns():
    callers = Callers(2, 10)
    await callers.add("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert callers.begun == ["a1", "a2"]
    for name in ("a1", "a2", "a3", "b1", "c1"):
        await callers.end(name)
    assert callers.begun == ["a1", "a2", "a3", "b1", "c1", "a4", "b2"]


async def test_a_client_with_all_that_it_may_have_leaves_a_place_to_others():
    callers = Callers(3, 10, max_each=2)
    await callers.add("a1", "a2", "a3", "a4")
    assert callers.begun == ["a1", "a2"]
    await callers.add("b1", "b2", "c1")
    assert callers.begun == ["a1", "a2", "b1"]
    for name in ("b1", "b2", "a1", "c1", "a2", "a3", "a4"):
        await callers.end(name)
    assert callers.begun == ["a1", "a2", "b1", "b2", "c1", "a3", "a4"]


async def test_a_caller_that_leaves_takes_no_turn():
    callers = Callers(1, 10)
    await callers.add("a1", "b1", "a2", "b2")
    callers.tasks["b1"].cancel()
    await settled()
    callers.ends["a1"].set()
    await asyncio.sleep(0)  # its turn has gone to a2, who leaves before it learns of that
    callers.tasks["a2"].cancel()
    await settled()
    assert callers.begun == ["a1", "b2"]
    await callers.end("b2")
    await callers.add("a3")
    assert callers.begun[-1] == "a3"


async def test_where_all_wait_a_client_with_less_than_its_share_waits_too():
    callers = Callers(1, 4)
    await callers.add("a1", "a2", "a3", "a4", "a5", "a6", "b1", "b2", "b3")
    for name in ("a6", "b3"):
        with pytest.raises(OverloadedError, match="grammars wait"):
            await callers.tasks[name]
    for name in ("a1", "a2", "b1", "a3"):
        await callers.end(name)
    assert callers.begun == ["a1", "a2", "b1", "a3", "b2"]
    await callers.end("b2")
    await callers.end("a4")
    await callers.end("a5")


async def test_those_who_wait_at_the_end_are_refused():
    callers = Callers(1, 4)
    await callers.add("a1", "a2", "b1")
    callers.places.refuse_waiting()
    for name in ("a2", "b1"):
        with pytest.raises(ShuttingDownError):
            await callers.tasks[name]
    await callers.end("a1")
    await callers.add("c1")
    assert callers.begun == ["a1", "c1"]
    await callers.end("c1")
