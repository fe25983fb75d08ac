"""What the engines of a draft server share: its places, and the tokens that it holds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from diffuspec.core.errors import OverloadedError
from diffuspec.draft_server.held_tokens import TOKENS_PER_REQUEST
from diffuspec.draft_server.service import DraftService
from diffuspec.draft_server.session import Session
from diffuspec.v1.draft_service_pb2 import (
    DRAFT_SOURCE_FRESH,
    DRAFT_SOURCE_NOT_WORTH_IT,
    DRAFT_SOURCE_UNKNOWN_BASE,
    EngineStep,
    RequestRow,
    StepDrafts,
)
from tests.support.draft_engine import TimedDrafter, make_hello, make_service, sources
from tests.support.fakes import right_and_sure
from tests.support.virtual_time import run_in_virtual_time

EACH = TOKENS_PER_REQUEST + 10  # tokens that a request of ten tokens counts as


def run(work: Callable[[DraftService], Awaitable[Any]], **config: object) -> TimedDrafter:
    drafter = TimedDrafter(right_and_sure)

    async def main() -> None:
        async with make_service(drafter, num_draft_tokens=4, **config) as service:
            await work(service)
            for session in [*service.sessions]:
                service.close(session)
            assert service.num_held_tokens == 0

    run_in_virtual_time(main())
    return drafter


class Engine:
    """An engine that sends requests of ten tokens."""

    def __init__(self, service: DraftService) -> None:
        self.session, _ = service.open(make_hello())
        self._num_steps = 0
        self._lengths: dict[str, int] = {}

    async def send(self, *names: str, is_new: bool = False) -> StepDrafts:
        """Report requests with ten tokens, or two more than before."""
        rows = []
        for name in names:
            held = 0 if is_new else self._lengths.get(name, 0)
            tokens = [3] * (2 if held else 10)
            rows.append(RequestRow(request_id=name, base_length=held, token_ids=tokens))
            self._lengths[name] = held + len(tokens)
        self._num_steps += 1
        step = EngineStep(step_id=self._num_steps, rows=rows, deadline_seconds=1.0)
        return await self.session.step(step)

    async def drafted(self, *names: str) -> list[str]:
        """Return the names of those requests for which there are drafts."""
        rows = (await self.send(*names)).rows
        return [name for name, row in zip(names, rows, strict=True) if row.token_ids]


def test_requests_beyond_the_bound_go_on_without_drafts_and_without_being_sent_again():
    async def work(service: DraftService) -> None:
        engine = Engine(service)
        assert await engine.drafted(*"abcdef") == [*"cdef"]
        for _ in range(3):
            answer = await engine.send(*"abcdef")
            assert [row.source for row in answer.rows[:2]] == [DRAFT_SOURCE_NOT_WORTH_IT] * 2
            assert DRAFT_SOURCE_UNKNOWN_BASE not in sources([answer])
            assert service.num_held_tokens <= 4 * EACH + 100

    run(work, max_held_tokens=4 * EACH + 100)


def test_a_request_that_is_sent_again_is_drafted_for_once_there_is_room():
    async def work(service: DraftService) -> None:
        engine = Engine(service)
        await engine.send(*"abcdef")
        step = EngineStep(step_id=2, ended_request_ids=[*"cd"])
        await engine.session.step(step)
        engine._num_steps = 2
        [row] = (await engine.send("a", is_new=True)).rows
        assert row.source == DRAFT_SOURCE_FRESH

    run(work, max_held_tokens=4 * EACH + 100)


def test_the_engine_that_holds_the_most_makes_room_for_others():
    async def work(service: DraftService) -> None:
        large, small = Engine(service), Engine(service)
        assert len(await large.drafted(*"abcdef")) == 6
        assert len(await small.drafted(*"xyz")) == 3
        assert await large.drafted(*"abcdef") == [*"def"]
        assert len(await small.drafted(*"xyz")) == 3

    run(work, max_held_tokens=6 * EACH + 100)


def test_an_engine_cannot_take_more_than_others_have():
    async def work(service: DraftService) -> None:
        first, second = Engine(service), Engine(service)
        await first.send(*"abc")
        assert await second.drafted(*"uvwxyz") == [*"xyz"]
        assert len(await first.drafted(*"abc")) == 3

    run(work, max_held_tokens=6 * EACH + 100)


def test_requests_that_are_absent_make_room_first():
    async def work(service: DraftService) -> None:
        engine = Engine(service)
        await engine.send(*"abcd")
        assert await engine.drafted(*"bcde") == [*"bcde"]
        [row] = (await engine.send("a")).rows
        assert row.source == DRAFT_SOURCE_NOT_WORTH_IT

    run(work, max_held_tokens=4 * EACH + 100)


def test_nothing_is_left_of_an_engine_that_has_gone():
    async def work(service: DraftService) -> None:
        engine = Engine(service)
        await engine.send(*"abcdef")
        requests = [weakref.ref(request) for _, request in engine.session.requests.items()]
        assert service.num_held_tokens == 4 * EACH and len(requests) == 4
        service.close(engine.session)
        assert service.num_held_tokens == 0
        del engine
        gc.collect()
        assert [ref() for ref in requests] == [None] * 4

    run(work, max_held_tokens=4 * EACH + 100)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of sessions, which a test changes."""
    now = [100.0]
    for module in ("service", "session"):
        monkeypatch.setattr(f"diffuspec.draft_server.{module}.time.monotonic", lambda: now[0])
    return now


async def test_the_longest_silent_engine_without_requests_gives_its_place(clock):
    async with make_service(TimedDrafter(right_and_sure), max_engines=3) as service:
        sessions: list[Session] = []
        for _ in range(3):
            sessions.append(service.open(make_hello())[0])
            clock[0] += 1.0
        await sessions[0].step(EngineStep(step_id=1))
        row = RequestRow(request_id="a", token_ids=[3])
        await sessions[1].step(EngineStep(step_id=1, rows=[row]))
        clock[0] += 10.0
        for lost in (sessions[2], sessions[0]):
            new, _ = service.open(make_hello())
            assert lost.lost_place.is_set() and lost not in service.sessions
            service.close(lost)  # as its stream does when it ends
        assert new in service.sessions and sessions[1] in service.sessions
        for session in [*service.sessions]:
            service.close(session)


async def test_an_engine_that_has_just_connected_keeps_its_place(clock):
    async with make_service(TimedDrafter(right_and_sure), max_engines=1) as service:
        session, _ = service.open(make_hello())
        clock[0] += 0.9
        with pytest.raises(OverloadedError, match="1 engines are connected, which is the limit"):
            service.open(make_hello())
        assert service.sessions == [session] and not session.lost_place.is_set()
        service.close(session)


def test_engines_share_no_cached_prefixes_and_requests_of_one_engine_do():
    async def work(service: DraftService) -> None:
        for engine in (Engine(service), Engine(service)):
            await engine.send("a", "b")

    salts = dict[str, set[str | None]]()
    for request in (each for batch in run(work).batches for each in batch):
        engine, _, _ = request.request_id.partition("/")
        salts.setdefault(engine, set()).add(request.sampling.cache_salt)
    assert [len(of_engine) for of_engine in salts.values()] == [1, 1]
    first, second = salts.values()
    assert not first & second and None not in first | second
