"""Threads for tokenising: long bodies do not delay short ones, and keys take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

import httpx2
import pytest

from diffuspec.core.errors import OverloadedError
from diffuspec.serve.http.keys import add_key
from diffuspec.serve.http.shared_threads import SharedThreads
from diffuspec.serve.openai import tokenization
from diffuspec.serve.openai.jobs import encode_one
from diffuspec.serve.settings import ServeSettings
from diffuspec.telemetry import context
from tests.support.service import MODEL, fake_engine, serving

LONG = 100_000  # bytes
SHORT = 100


class Work:
    """Work that begins in a thread and ends when it is let go."""

    def __init__(self, threads: SharedThreads) -> None:
        self.begun: list[str] = []
        self._threads = threads
        self._gate = threading.Semaphore(0)

    def start(self, name: str, num_bytes: int = LONG) -> asyncio.Task[None]:
        """Let the key `name` ask for work."""
        sender = copy_context()
        sender.run(context.key_name.set, name)

        def work() -> None:
            self.begun.append(name)
            self._gate.acquire()

        return asyncio.create_task(self._threads.run(work, num_bytes), context=sender)

    def let_go(self, number: int) -> None:
        self._gate.release(number)


@asynccontextmanager
async def working(max_waiting: int = 8) -> AsyncIterator[Work]:
    work = Work(SharedThreads(1, max_waiting, "test"))
    yield work
    work.let_go(100)


async def test_keys_take_turns_and_short_bodies_pass_long_ones():
    async with working() as work:
        many = [work.start("a") for _ in range(4)]
        await asyncio.sleep(0)
        few = [work.start("b") for _ in range(2)]
        short = work.start("c", SHORT)
        while "c" not in work.begun:
            await asyncio.sleep(0.001)
        assert sorted(work.begun) == ["a", "c"]
        work.let_go(7)
        await asyncio.gather(*many, *few, short)
        assert [name for name in work.begun if name != "c"] == ["a", "a", "b", "a", "b", "a"]


async def test_a_full_queue_still_takes_the_share_of_another_key():
    async with working(max_waiting=4) as work:
        running = [work.start("a") for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="4 prompts wait to be tokenised"):
            await work.start("a")
        running += [work.start("b") for _ in range(2)]
        with pytest.raises(OverloadedError):
            await work.start("b")
        work.let_go(7)
        await asyncio.gather(*running)


async def test_work_whose_client_leaves_is_dropped_or_keeps_its_thread_to_its_end():
    async with working() as work:
        first, second, third = (work.start(name) for name in "abc")
        while not work.begun:
            await asyncio.sleep(0.001)
        for task in (first, second):
            task.cancel()
        await asyncio.sleep(0.01)
        assert work.begun == ["a"]  # its thread is not free yet
        work.let_go(2)
        await third
        assert work.begun == ["a", "c"]


async def test_counting_waits_for_no_long_text_of_another_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gate, begun = threading.Event(), threading.Event()

    def slow(prompt: Any, *rest: Any) -> Any:
        begun.set()
        gate.wait()
        return encode_one(prompt, *rest)

    monkeypatch.setattr(tokenization, "encode_one", slow)
    path = tmp_path / "keys.yaml"
    alice, bob = ({"x-api-key": add_key(path, name)} for name in ("alice", "bob"))
    short = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
    with serving(fake_engine, ServeSettings(api_keys=path)) as service:
        async with httpx2.AsyncClient(base_url=service.url, timeout=20) as client:
            asked = [
                asyncio.create_task(
                    client.post("/tokenize", json={"prompt": "x" * 20_000}, headers=alice)
                )
                for _ in range(24)
            ]
            await asyncio.to_thread(begun.wait, 20)
            monkeypatch.setattr(tokenization, "encode_one", encode_one)
            counted = await client.post("/v1/messages/count_tokens", json=short, headers=bob)
            assert counted.json()["input_tokens"] > 0
            assert not any([task.done() for task in asked])
            gate.set()
            assert all([reply.is_success for reply in await asyncio.gather(*asked)])
