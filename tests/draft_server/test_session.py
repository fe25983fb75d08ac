"""A session answers the steps of an engine with drafts that it made ahead, or in time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import fmean
from typing import Any

import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest
from diffuspec.draft_server.planner import Planner, Sent
from diffuspec.draft_server.request import EngineRequest
from diffuspec.draft_server.service import DraftService
from diffuspec.draft_server.session import Session
from diffuspec.speculation.acceptance import SharedAcceptance
from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.costs import DraftCosts
from diffuspec.speculation.lengths import Ahead
from diffuspec.v1.draft_service_pb2 import (
    DRAFT_FORM_TREE,
    DRAFT_SOURCE_AHEAD,
    DRAFT_SOURCE_FAILED,
    DRAFT_SOURCE_FRESH,
    DRAFT_SOURCE_LATE,
    DRAFT_SOURCE_NOT_WORTH_IT,
    DRAFT_SOURCE_REST,
    DRAFT_SOURCE_UNKNOWN_BASE,
    EngineStep,
    OutcomeTable,
    RequestRow,
    RowDraft,
)
from tests.support.draft_engine import (
    GREEDY,
    TARGET,
    FakeEngine,
    TimedDrafter,
    make_hello,
    make_service,
    sources,
)
from tests.support.fakes import (
    FAKE_TARGET,
    always_right,
    bushy,
    never_right,
    right_and_sure,
    sometimes_right,
)
from tests.support.virtual_time import run_in_virtual_time

PROMPTS = {"a": [3, 4, 5], "b": [7, 8, 9, 10]}
MANY = {f"r{number}": [3, 4, 5 + number] for number in range(8)}
SILENT = {"max_silent_steps": 16}  # of an engine that need not ask at each step


def planner_of(seconds: float = 0.0, seconds_each: float = 0.0) -> Planner:
    """Return a planner of a drafter whose calls take this long, and longer for each position."""
    costs = DraftCosts(Interference.assumed(0.0))
    for size in (1, 4, 16, 64):
        costs = costs.observe(size, 1, 0, seconds + seconds_each * size)
    return Planner("pld", lambda: costs)


def request_of(name: str, shared: SharedAcceptance) -> EngineRequest:
    request = EngineRequest(name, 3, shared, 0.5, GREEDY)
    request.num_left, request.max_draft_tokens = 100, 12
    return request


def run(
    drafter: TimedDrafter,
    work: Callable[[DraftService, Session], Awaitable[Any]],
    hello: dict[str, Any] | None = None,
    **config: object,
) -> Any:
    """Open a session in virtual time and have it work."""

    async def main() -> Any:
        async with make_service(drafter, **config) as service:
            session, _ = service.open(make_hello(**(hello or {})))
            found = await work(service, session)
            service.close(session)
            return found

    return run_in_virtual_time(main())


def decode(
    drafter: TimedDrafter,
    num_steps: int,
    prompts: dict[str, list[int]] = PROMPTS,
    hello: dict[str, Any] | None = None,
    num_draft_tokens: int | None = None,
    **given: Any,
) -> FakeEngine:
    async def work(service: DraftService, session: Session) -> FakeEngine:
        engine = FakeEngine(session, prompts, **given)
        await engine.run(num_steps)
        return engine

    config = {} if num_draft_tokens is None else {"num_draft_tokens": num_draft_tokens}
    found = run(drafter, work, hello, **config)
    assert isinstance(found, FakeEngine)
    return found


async def send(session: Session, step_id: int, **row: Any) -> RowDraft:
    """Report a step with a single request."""
    step = EngineStep(step_id=step_id, rows=[RequestRow(**row)], deadline_seconds=0.1)
    [found] = (await session.step(step)).rows
    session.draft_ahead()
    return found


def test_good_drafts_are_made_ahead_and_answered_at_once():
    engine = decode(TimedDrafter(right_and_sure, 0.005), 60)
    late = sources(engine.answers[20:])
    assert late.count(DRAFT_SOURCE_AHEAD) + late.count(DRAFT_SOURCE_REST) > 0.8 * len(late)
    assert sorted(engine.waits[20:])[30] == 0.0
    assert len(engine.output("a")) > 3 * 60


def test_drafts_are_searched_with_the_weight_that_is_configured():
    drafter = TimedDrafter(right_and_sure)
    run(drafter, lambda _, session: FakeEngine(session, PROMPTS).run(4), drafter_weight=0.7)
    weights = {request.drafter_weight for batch in drafter.batches for request in batch}
    assert weights == {0.7}


@pytest.mark.no_cover
def test_what_an_engine_commits_does_not_depend_on_the_drafts():
    texts = [
        decode(TimedDrafter(strategy, 0.005), 40).output("a")[:41]
        for strategy in (always_right, never_right, sometimes_right, bushy)
    ]
    assert texts.count(texts[0]) == 4


def test_pre_drafts_begin_once_the_answer_is_sent(monkeypatch: pytest.MonkeyPatch):
    drafter = TimedDrafter(right_and_sure, 0.002)

    async def work(_: DraftService, session: Session) -> tuple[int, int]:
        engine, counts = FakeEngine(session, {"a": [3, 4, 5]}), list[int]()
        await engine.run(30)
        monkeypatch.setattr(session, "draft_ahead", lambda: counts.append(drafter.num_calls))
        await engine.step()
        unsent = drafter.num_calls - counts[0]
        monkeypatch.undo()
        await engine.step()
        return unsent, drafter.num_calls - counts[0]

    unsent, sent = run(drafter, work)
    assert unsent == 0 < sent


def test_drafts_that_do_not_pay_stop():
    engine = decode(TimedDrafter(never_right, 0.005), 150, row_seconds=0.01)
    found = sources(engine.answers[100:])
    assert found.count(DRAFT_SOURCE_NOT_WORTH_IT) > 0.8 * len(found)


def test_an_engine_whose_drafts_do_not_pay_is_told_that_it_need_not_ask():
    engine = decode(
        TimedDrafter(never_right, 0.005),
        500,
        step_seconds=0.005,
        transport_seconds=0.001,
        hello=SILENT,
    )
    silent = [one.num_silent_steps for one in engine.answers]
    longest = max(silent)
    assert longest > 8 and sum(silent) > 250
    assert not any(
        row.token_ids for one in engine.answers if one.num_silent_steps for row in one.rows
    )
    assert 0 in silent[silent.index(longest) :]  # drafts are tried again
    assert engine.output("a") == TARGET.continuation(PROMPTS["a"], len(engine.output("a")), GREEDY)


def test_an_engine_that_does_not_know_silence_is_not_asked_for_it():
    engine = decode(TimedDrafter(never_right, 0.005), 60, row_seconds=0.01)
    assert len(engine.answers) == 60 and not any(one.num_silent_steps for one in engine.answers)


def test_plain_decoding_is_measured_without_the_wait_for_answers():
    asked, silent = [planner_of() for _ in range(2)]
    for _ in range(8):
        asked.observe(Sent(1, 0, 0.0, 0.0, 0.0), 0.0, 0.01, 0.002, 0.0)
    silent.observe_silence(1, 8, 0.08)
    assert asked.costs.plain_seconds(1) == pytest.approx(0.012)
    assert silent.costs.plain_seconds(1) == pytest.approx(0.01)


@pytest.mark.parametrize(("wait", "num_silent"), [(0.004, 8), (0.0, 3)])
def test_answers_without_drafts_take_a_hundredth_of_the_time(wait: float, num_silent: int):
    planner = planner_of()
    for _ in range(64):
        planner.observe(Sent(8, 0, 0.0, 0.0, 0.0), 0.0, 0.05 - wait, wait, 0.0)
    requests = [request_of(name, SharedAcceptance(8)) for name in MANY]
    assert planner.num_silent_steps(requests) == pytest.approx(num_silent, abs=1)


@pytest.mark.parametrize(("row_seconds", "is_drafted"), [(0.006, False), (0.0005, True)])
def test_drafts_are_sized_for_what_they_gain_and_their_verification_costs(
    row_seconds: float, is_drafted: bool
):
    planner = planner_of(0.005)
    for num_nodes in (0, 8, 16, 0):
        verify = 0.03 + row_seconds * num_nodes
        for _ in range(8):
            planner.observe(Sent(8, num_nodes, 0.0, 0.0, 0.0), 0.0, verify, 0.0, 0.0)
    shared = SharedAcceptance(8)
    assert bool(planner.lengths([request_of(name, shared) for name in MANY])) == is_drafted


def test_unlikely_outcomes_are_drafted_for_while_there_is_time():
    planner = planner_of(0.002, 0.0005)
    for _ in range(8):
        planner.observe(Sent(1, 0, 0.0, 0.0, 0.0), 0.0, 0.025, 0.0, 0.0)
    outcomes = [Ahead(chance, 4) for chance in (0.3, *7 * [0.01])]
    assert planner.num_ahead(outcomes, 0.025, 1) == 8
    assert planner.num_ahead(outcomes, 0.0, 1) == 0


def test_an_engine_is_not_asked_while_nothing_is_worth_drafting():
    drafter = TimedDrafter(right_and_sure, 0.005)
    engine = decode(drafter, 100, MANY, SILENT, step_seconds=0.03, row_seconds=0.006)
    assert len(engine.answers) < 40 and drafter.num_calls < 20


def test_exploration_goes_on_while_no_draft_is_worth_it():
    drafter = TimedDrafter(sometimes_right, 0.005)
    decode(drafter, 60, MANY, SILENT, row_seconds=0.004)
    before, drafter.num_calls = drafter.num_calls, 0
    engine = decode(drafter, 240, MANY, SILENT, row_seconds=0.004)
    assert before < drafter.num_calls < 4 * before
    assert len(engine.answers) < 120


def test_a_step_without_a_request_that_has_ended_is_not_taken_for_one_with_it():
    async def work(_: DraftService, session: Session) -> tuple[float, float]:
        engine = FakeEngine(session, PROMPTS, row_seconds=0.0)
        await engine.run(30)
        before = session.planner.costs.verify_seconds(2, 2)
        engine.step_seconds = 0.01  # the answer has two drafts, of which one is verified
        await engine.step()
        engine.end("a")
        await engine.step()
        return before, session.planner.costs.verify_seconds(2, 2)

    before, after = run(TimedDrafter(never_right), work)
    assert after == pytest.approx(before)


def test_an_answer_that_is_held_up_once_does_not_end_drafts():
    planner = planner_of()
    for wait in (0.001, 2.0):
        planner.observe(Sent(1, 3, 0.0, 0.0, 0.0), 1.0, 0.01, wait, 0.0)
    assert "overhead 1." in str(planner), "in milliseconds"


def test_an_engine_is_asked_to_report_a_draft_that_pays():
    engine = decode(TimedDrafter(right_and_sure, 0.005), 60, hello=SILENT)
    silent = [one.num_silent_steps for one in engine.answers[20:]]
    assert sum([one > 0 for one in silent]) <= 2, "plain decoding is measured now and then"
    assert len(engine.output("a")) > 3 * 60


def test_drafts_of_a_fixed_length_are_made_whether_they_pay_or_not():
    engine = decode(TimedDrafter(never_right, 0.5), 20, hello=SILENT, num_draft_tokens=3)
    assert [len(row.token_ids) for one in engine.answers for row in one.rows] == [3] * 40
    assert {*sources(engine.answers)} == {DRAFT_SOURCE_FRESH}


def test_a_chain_is_as_long_as_the_engine_takes():
    engine = decode(TimedDrafter(right_and_sure), 30, hello={"max_draft_tokens": 3})
    assert max(len(row.token_ids) for one in engine.answers for row in one.rows) == 3
    assert not any(row.parents for one in engine.answers for row in one.rows)


def test_the_longest_draft_of_an_engine_is_no_longer_than_a_drafter_makes():
    drafter, hello = TimedDrafter(right_and_sure), {"max_draft_tokens": MAX_DRAFT_TOKENS}
    decode(drafter, 4, hello=hello, num_draft_tokens=MAX_DRAFT_TOKENS)
    lengths = {request.num_draft_tokens for batch in drafter.batches for request in batch}
    assert max(lengths) == MAX_DRAFT_TOKENS


def right_for_even_prompts(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
    is_easy = request.prefix[2] % 2 == 0
    return (right_and_sure if is_easy else never_right)(rng, request, truth)


def tokens_per_second(num_draft_tokens: int | None = None) -> tuple[float, FakeEngine]:
    """Decode eight requests, half of them easy, in a batch, and return the speed of the last."""
    drafter, num_steps = TimedDrafter(right_for_even_prompts, 0.001), 60

    async def work(_: DraftService, session: Session) -> tuple[float, FakeEngine]:
        engine = FakeEngine(session, MANY, row_seconds=0.0005)
        await engine.run(num_steps // 2)
        done, began = sum(len(engine.output(name)) for name in MANY), time.monotonic()
        await engine.run(num_steps // 2)
        more = sum(len(engine.output(name)) for name in MANY) - done
        return more / (time.monotonic() - began), engine

    fixed = {} if num_draft_tokens is None else {"num_draft_tokens": num_draft_tokens}
    found: tuple[float, FakeEngine] = run(drafter, work, None, **fixed)
    return found


def test_drafts_of_one_batch_are_as_long_as_their_own_requests_deserve():
    speed, engine = tokens_per_second()
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for answer in engine.answers[30:]:
        for name, row in zip(MANY, answer.rows, strict=True):
            lengths[MANY[name][2] % 2 == 0].append(len(row.token_ids))
    assert fmean(lengths[True]) > 4 > 4 * fmean(lengths[False])
    assert speed > 1.1 * max(tokens_per_second(length)[0] for length in (1, 2, 4, 8))


def test_an_engine_that_takes_trees_gets_parents():
    hello = {"form": DRAFT_FORM_TREE, "max_draft_tokens": 16}
    engine = decode(TimedDrafter(bushy), 6, {"a": [3, 4, 5]}, hello, row_seconds=0.0)
    rows = [row for one in engine.answers for row in one.rows if row.token_ids]
    assert rows and all(len(row.parents) == len(row.token_ids) for row in rows)
    assert any(row.parents[node] != node - 1 for row in rows for node in range(len(row.parents)))


def test_a_step_ends_by_its_deadline_and_the_late_draft_is_of_use_later():
    drafter = TimedDrafter(right_and_sure, 0.0)

    async def work(service: DraftService, session: Session) -> FakeEngine:
        engine = FakeEngine(session, {"a": [3, 4, 5]}, deadline_seconds=0.02)
        await engine.run(8)
        drafter.seconds = 0.1
        engine.answers.clear()
        await engine.run(12)
        return engine

    engine = run(drafter, work)
    found = sources(engine.answers)
    assert max(engine.waits) <= 0.02
    assert DRAFT_SOURCE_LATE in found
    after = found[found.index(DRAFT_SOURCE_LATE) :]
    assert DRAFT_SOURCE_REST in after or DRAFT_SOURCE_AHEAD in after


def test_a_drafter_that_fails_costs_drafts_alone():
    drafter = TimedDrafter(right_and_sure)

    async def work(service: DraftService, session: Session) -> tuple[FakeEngine, bool]:
        engine = FakeEngine(session, PROMPTS)
        await engine.run(8)
        drafter.error = RuntimeError("out of memory")
        engine.answers.clear()
        await engine.run(20)
        was_healthy = service.is_healthy()
        drafter.error = None
        await asyncio.sleep(20.0)
        await engine.run(20)
        return engine, was_healthy

    engine, _ = run(drafter, work)
    failed, after = sources(engine.answers[:20]), sources(engine.answers[-5:])
    assert DRAFT_SOURCE_FAILED in failed
    assert DRAFT_SOURCE_AHEAD in after or DRAFT_SOURCE_FRESH in after
    assert len(engine.output("a")) > 60


def test_nothing_is_drafted_for_a_prefix_that_has_grown_in_the_queue():
    async def work(service: DraftService, session: Session) -> None:
        drafter.gate.close()
        await send(session, 1, request_id="a", token_ids=[3, 4], num_prompt_tokens=1)
        for step_id in (2, 3, 4):
            await send(session, step_id, request_id="a", base_length=step_id, token_ids=[5])
        drafter.gate.open()
        await asyncio.sleep(0.1)

    drafter = TimedDrafter(right_and_sure)
    run(drafter, work, num_draft_tokens=3)
    prefixes = [one.prefix.tolist() for batch in drafter.batches for one in batch]
    assert prefixes == [[3, 4], [3, 4, 5, 5, 5]]


def test_a_drafter_that_proposes_nothing_has_not_failed():
    class Empty(TimedDrafter):
        async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            await super().draft(requests)
            return [EMPTY_DRAFT for _ in requests]

    engine = decode(Empty(right_and_sure), 8, num_draft_tokens=3)
    assert {*sources(engine.answers)} == {DRAFT_SOURCE_NOT_WORTH_IT}


def test_a_drafter_that_hangs_costs_its_deadline_once():
    drafter = TimedDrafter(right_and_sure)

    async def work(service: DraftService, session: Session) -> FakeEngine:
        engine = FakeEngine(session, PROMPTS, deadline_seconds=0.1)
        await engine.run(8)
        drafter.gate.close()
        engine.waits.clear()
        await engine.run(100)
        return engine

    engine = run(drafter, work, max_draft_seconds=1.0)
    assert sum(engine.waits) < 0.5


def test_an_unknown_base_is_told_so_that_the_request_is_sent_whole():
    async def work(service: DraftService, session: Session) -> Any:
        first = await send(session, 1, request_id="a", base_length=5, token_ids=[1])
        whole = {"token_ids": [1, 2, 3], "num_prompt_tokens": 2}
        return first, await send(session, 2, request_id="a", **whole)

    first, second = run(TimedDrafter(right_and_sure), work)
    assert first.source == DRAFT_SOURCE_UNKNOWN_BASE != second.source


def test_requests_that_end_are_released():
    drafter = TimedDrafter(right_and_sure)

    async def work(service: DraftService, session: Session) -> None:
        engine = FakeEngine(session, PROMPTS)
        await engine.run(6)
        engine.end("a")
        await engine.run(2)
        assert drafter.released == ["engine-1/a"]

    run(drafter, work)
    assert sorted(drafter.released) == ["engine-1/a", "engine-1/b"]


def test_no_request_is_released_once_the_service_has_ended():
    class Slow(TimedDrafter):
        async def release(self, request_id: str) -> None:
            await asyncio.sleep(1.0)
            await super().release(request_id)

    async def main() -> None:
        async with make_service(drafter) as service:
            session, _ = service.open(make_hello())
            await FakeEngine(session, PROMPTS).run(2)
            service.close(session)
        await asyncio.sleep(2.0)

    drafter = Slow(right_and_sure)
    run_in_virtual_time(main())
    assert not drafter.released


def test_a_fault_in_the_choice_of_drafts_shows_in_the_health_and_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(now: float) -> None:
        raise ZeroDivisionError

    async def work(service: DraftService, session: Session) -> None:
        monkeypatch.setattr(session.pre_drafts, "next_batch", fail)
        await FakeEngine(session, PROMPTS).run(4)
        assert not service.is_healthy()

    with pytest.raises(ZeroDivisionError):
        run(TimedDrafter(right_and_sure), work)
    assert "drafting has ended: restart the server" in caplog.text


def test_requests_that_never_end_are_forgotten_when_there_are_too_many():
    drafter = TimedDrafter(right_and_sure)

    async def work(service: DraftService, session: Session) -> None:
        for step_id in range(1, 41):
            name = f"r{step_id}"
            await send(session, step_id, request_id=name, token_ids=[1, 2], num_prompt_tokens=1)
        assert len(session.requests) == 16
        old = await send(session, 41, request_id="r1", base_length=2, token_ids=[3])
        assert old.source == DRAFT_SOURCE_UNKNOWN_BASE

    run(drafter, work)


def test_a_request_longer_than_the_drafter_takes_goes_on_without_drafts():
    async def work(service: DraftService, session: Session) -> None:
        text = [3] * (FAKE_TARGET.max_model_len + 5)
        bases = (0, len(text), len(text) + 2, len(text) + 3)
        for step_id, base in enumerate(bases, start=1):
            tokens, size = ([4, 5], 0) if base else (text, 9)
            row = {"base_length": base, "token_ids": tokens, "num_prompt_tokens": size}
            answer = await send(session, step_id, request_id="a", **row)
            is_known = base != bases[-1]
            assert answer.source == (
                DRAFT_SOURCE_NOT_WORTH_IT if is_known else DRAFT_SOURCE_UNKNOWN_BASE
            )
        assert len(session.requests) == 1

    drafter = TimedDrafter(right_and_sure)
    run(drafter, work)
    assert not drafter.batches


def test_no_draft_is_longer_than_the_drafter_s_context_whatever_the_engine_allows():
    async def work(service: DraftService, session: Session) -> None:
        row = {"token_ids": [3] * (FAKE_TARGET.max_model_len - 4), "max_tokens_left": 2**32 - 1}
        await send(session, 1, request_id="a", **row)

    drafter = TimedDrafter(right_and_sure)
    run(drafter, work, num_draft_tokens=8)
    assert [one.num_draft_tokens for batch in drafter.batches for one in batch] == [4]


@pytest.mark.parametrize("base", [0, 4])
def test_a_request_that_was_too_long_and_goes_back_is_drafted_for_once_it_is_sent_whole(base: int):
    prompts = []

    async def work(service: DraftService, session: Session) -> None:
        whole = {"request_id": "a", "num_prompt_tokens": 2}
        await send(session, 1, token_ids=[3] * FAKE_TARGET.max_model_len, **whole)
        if base:
            found = await send(session, 2, request_id="a", base_length=base, token_ids=[5])
            assert found.source == DRAFT_SOURCE_UNKNOWN_BASE
        answer = await send(session, 3 if base else 2, token_ids=[3, 4, 5], **whole)
        assert answer.token_ids
        prompts.extend([one.prefix.tolist() for one in drafter.batches[0]])

    drafter = TimedDrafter(right_and_sure)
    run(drafter, work, num_draft_tokens=3)
    assert prompts == [[3, 4, 5]]


async def test_an_engine_with_very_many_tokens_does_not_keep_others_waiting():
    tokens = [3] * (FAKE_TARGET.max_model_len - 1)
    rows = [RequestRow(request_id=str(number), token_ids=tokens) for number in range(1024)]
    async with make_service(TimedDrafter(right_and_sure)) as service:
        large, small = [service.open(make_hello(max_requests=1024))[0] for _ in range(2)]
        steps = [
            asyncio.create_task(session.step(EngineStep(step_id=1, rows=sent)))
            for session, sent in ((large, rows), (small, rows[:1]))
        ]
        done, _ = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
        assert done == {steps[1]}
        await steps[0]


def test_a_token_id_outside_the_vocabulary_is_refused():
    async def work(service: DraftService, session: Session) -> None:
        with pytest.raises(InvalidRequestError, match="token ids must be below 50, got 64"):
            await send(session, 1, request_id="a", token_ids=[1, 64])

    run(TimedDrafter(right_and_sure), work)


@pytest.mark.parametrize("num_silent_steps", [0, 16])
@pytest.mark.parametrize("seconds", [5e-324, 1e308])
def test_nothing_is_learnt_from_times_that_no_step_takes(seconds: float, num_silent_steps: int):
    async def work(service: DraftService, session: Session) -> tuple[str, str]:
        engine = FakeEngine(session, PROMPTS)
        for _ in range(20):
            await engine.step()
        before = str(session.planner)
        engine.report_times(seconds, seconds, num_silent_steps)
        await engine.step()
        return before, str(session.planner)

    before, after = run(TimedDrafter(sometimes_right, 0.005), work, SILENT)
    assert after == before


def test_an_engine_without_requests_reports_steps_from_which_nothing_is_learnt():
    async def work(service: DraftService, session: Session) -> None:
        for step_id in (1, 2, 3):
            step = EngineStep(step_id=step_id, verify_seconds=0.01, wait_seconds=0.001)
            assert not (await session.step(step)).rows

    run(TimedDrafter(right_and_sure), work)


def test_tokens_that_the_drafter_does_not_know_are_not_drafted_for():
    async def work(service: DraftService, session: Session) -> None:
        row = {"token_ids": [3, FAKE_TARGET.vocab_size + 1, 4], "num_prompt_tokens": 2}
        for step_id in (1, 2, 3, 4, 5):
            assert not (await send(session, step_id, request_id=f"r{step_id}", **row)).token_ids

    drafter = TimedDrafter(right_and_sure)
    run(drafter, work, {"vocab_size": 64})
    assert not drafter.batches


def test_outcomes_are_pushed_with_the_draft_that_follows_them():
    tables: list[OutcomeTable] = []

    async def work(service: DraftService, session: Session) -> FakeEngine:
        session.on_outcomes = tables.append
        engine = FakeEngine(session, {"a": [3, 4, 5]})
        await engine.run(30)
        return engine

    engine = run(TimedDrafter(right_and_sure, 0.002), work)
    text, found = engine.texts["a"], 0
    for table in tables:
        sent = [*engine.answers[table.step_id - 1].rows[0].token_ids]
        for one in table.outcomes:
            assert one.request_id == "a" and one.num_accepted <= len(sent)
            committed = [*sent[: one.num_accepted], one.token_id, *one.token_ids]
            joined, wanted = " ".join(map(str, text)), " ".join(map(str, committed))
            found += f" {wanted} " in f" {joined} "
    assert tables and found >= 10


@pytest.mark.no_cover
@pytest.mark.parametrize("share", [1.0, 4.0])
def test_tenants_with_more_work_than_time_draft_ahead_by_their_shares(
    share: float, monkeypatch: pytest.MonkeyPatch
):
    used = {"mine": 0.0, "other": 0.0}  # seconds of pre-drafting

    async def decode_for(service: DraftService, tenant: str) -> None:
        session, _ = service.open(make_hello(tenant=tenant))
        charge = session.pre_drafts.charge

        def count(seconds: float) -> None:
            used[tenant] += seconds
            charge(seconds)

        monkeypatch.setattr(session.pre_drafts, "charge", count)
        await FakeEngine(session, {"a": [3, 4, 5]}, step_seconds=0.01).run(150)
        service.close(session)

    async def main() -> None:
        async with make_service(drafter, tenants={"mine": share}) as service:
            tenants = ("mine", "mine", "other", "other")
            await asyncio.gather(*[decode_for(service, one) for one in tenants])

    drafter = TimedDrafter(sometimes_right, 0.008)
    run_in_virtual_time(main())
    assert share / 2 < used["mine"] / used["other"] < 2 * share
