"""A run over a service that fails in every way."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.batches.inputs import jsonl_file, read, scan
from deploy.batches.outputs import open_output
from deploy.batches.results import BatchStoppedError, ServiceBusyError, ServiceLostError
from deploy.batches.run import Options, Run
from deploy.batches.summary import Counts
from tests.support.batches import Echo, Stuck, chat, results_in, texts

Answer = Callable[..., Any]

USUAL: dict[str, Any] = {
    "concurrency": None,
    "patience_seconds": 60.0,
    "defaults": {},
    "speculation": {},
}


class Kept(list[Any]):
    """Results in memory, for virtual time, which threads that write do not have."""

    async def append(self, result: Any, on_written: object) -> None:  # type: ignore[override]
        super().append(result)

    async def flush(self) -> None: ...


async def answer_in_memory(path: Path, service: Echo) -> Kept:
    source, results = jsonl_file(path), Kept()
    lines = read(source, scan(source), bytearray(100))
    how = Options(**(USUAL | {"concurrency": 2}))
    await Run(service, results, how, lambda _: None).finish(lines)
    return results


@pytest.fixture
def answer(tmp_path: Path) -> Answer:
    """Answer an input with a service, into out.jsonl; return the counts of the run."""

    async def answer(path: Path, service: Echo, **options: Any) -> Counts:
        source = jsonl_file(path)
        index = scan(source)
        counts = Counts(index.num_rows)
        how = Options(**(USUAL | options))
        with open_output(tmp_path / "out.jsonl", index, counts.before.add) as output:
            lines = read(source, index, output.done)
            await Run(service, output, how, counts.now.add).finish(lines)
        return counts

    return answer


async def test_every_row_gets_a_result_with_its_id(written, answer, tmp_path):
    path = written(chat("a", custom_id="x"), chat("b"), {"question_id": 7, "turns": ["c"]})
    counts = await answer(path, Echo())
    results = results_in(tmp_path / "out.jsonl")
    assert [result["custom_id"] for result in results] == ["x", "line-2", "7"]
    assert texts(results[:2]) == ["<a>", "<b>"]
    assert all(result["error"] is None for result in results)
    assert (counts.now.num_rows, counts.now.num_failed) == (3, 0)
    assert (counts.now.num_prompt_tokens, counts.now.num_output_tokens) == (15, 18)
    assert counts.now.mean_acceptance_length == 3.0


async def test_a_second_turn_is_asked_after_the_model_s_own_answer(written, answer, tmp_path):
    service = Echo()
    counts = await answer(
        written({"question_id": 7, "category": "qa", "turns": ["a", "b"]}), service
    )
    user, assistant = "user", "assistant"
    assert service.bodies[1]["messages"] == [
        {"role": user, "content": "a"},
        {"role": assistant, "content": "<a>"},
        {"role": user, "content": "b"},
    ]
    [result] = results_in(tmp_path / "out.jsonl")
    body = result["response"]["body"]
    assert (body["object"], body["question_id"], body["category"]) == ("conversation", 7, "qa")
    answers = [turn["choices"][0]["message"]["content"] for turn in body["turns"]]
    assert answers == ["<a>", "<b>"]
    assert counts.now.num_output_tokens == 12


async def test_a_turn_that_is_refused_is_the_result_of_its_question(written, answer, tmp_path):
    service = Echo()
    counts = await answer(written({"question_id": 7, "turns": ["wrong", "b"]}), service)
    [result] = results_in(tmp_path / "out.jsonl")
    assert result["response"]["status_code"] == 400
    assert len(service.bodies) == 1 and counts.num_failed == 1


async def test_bad_rows_are_results_and_the_run_goes_on(written, answer, tmp_path):
    path = written("{", chat("wrong", custom_id="w"), {"custom_id": "n"}, chat("b"))
    counts = await answer(path, Echo())
    broken, wrong, empty, good = results_in(tmp_path / "out.jsonl")
    assert (broken["custom_id"], broken["response"]) == ("line-1", None)
    assert broken["error"]["code"] == "invalid_json"
    assert wrong["error"] is None and wrong["response"]["body"]["error"]["param"] == "messages"
    assert (empty["custom_id"], empty["error"]["code"]) == ("n", "invalid_row")
    assert texts([good]) == ["<b>"]
    assert (counts.num_done, counts.num_failed) == (4, 3)


async def test_rows_in_flight_are_bounded(written, answer):
    service = Echo()
    await answer(written(*(chat(str(i)) for i in range(20))), service, concurrency=4)
    assert service.most_in_flight == 4


async def test_defaults_and_speculation_reach_the_bodies(written, answer):
    service = Echo()
    request = {"custom_id": "a", "url": "/v1/chat/completions", "body": chat("a")}
    own = chat("b", speculation="off")
    how = {"defaults": {"max_tokens": 4}, "speculation": {"policy": "paper"}, "concurrency": 1}
    await answer(written(request, own), service, **how)
    first, second = service.bodies
    assert "max_tokens" not in first and first["speculation"] == {"policy": "paper"}
    assert (second["max_tokens"], second["speculation"]) == (4, "off")


@pytest.mark.virtual_time
async def test_rows_wait_while_the_service_is_busy_or_away(written):
    failures = [ServiceBusyError("full", 3.0), ServiceLostError("gone"), ServiceLostError("gone")]
    loop = asyncio.get_running_loop()
    started = loop.time()
    results = await answer_in_memory(written(chat("a")), Echo(failures))
    assert texts(results) == ["<a>"]
    assert 4 < loop.time() - started < 10  # 3 + 1 + 2 seconds, each up to a quarter more or less


@pytest.mark.virtual_time
async def test_a_batch_stops_when_nothing_is_answered_for_long(written):
    service = Echo([ServiceLostError("connection refused")] * 1000)
    service.is_there = False
    started = asyncio.get_running_loop().time()
    with pytest.raises(BatchStoppedError, match=r"no answer for 60 seconds.* connection refused"):
        await answer_in_memory(written(chat("a"), chat("b")), service)
    assert asyncio.get_running_loop().time() - started <= 60


class Poisoned(Echo):
    """Is lost whenever it is asked about poison."""

    def __init__(self) -> None:
        super().__init__()
        self.deaths: list[int] = []  # numbers of requests in flight

    async def _answer(self, body: Any, request_id: str) -> Any:
        if body["messages"][-1]["content"] == "poison":
            self.deaths.append(self.num_in_flight)
            raise ServiceLostError("crashed")
        await asyncio.sleep(1)
        return await super()._answer(body, request_id)


@pytest.mark.virtual_time
async def test_a_row_that_the_service_never_survives_is_tried_alone_and_fails(written):
    path = written(chat("poison"), *(chat(str(i)) for i in range(30)))
    service = Poisoned()
    results = await answer_in_memory(path, service)
    assert len(results) == 31
    assert len(service.deaths) == 3 and service.deaths[-1] == 1
    [poisoned] = [result for result in results if result["response"] is None]
    assert poisoned["id"].startswith("batch_req_1_")
    assert poisoned["error"]["code"] == "service_lost"


@pytest.mark.virtual_time
async def test_a_row_is_lost_alone_also_where_no_other_is_left(written):
    results = await answer_in_memory(written(chat("poison")), Poisoned())
    assert results[0]["error"]["code"] == "service_lost"


class Away(Echo):
    """Answers, is away for half a minute, and answers again."""

    async def _answer(self, body: Any, request_id: str) -> Any:
        await asyncio.sleep(1)
        if not await self.is_up():
            raise ServiceLostError("all connection attempts failed")
        return await super()._answer(body, request_id)

    async def is_up(self) -> bool:
        return not 5 < asyncio.get_running_loop().time() - self.began < 35

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.get_running_loop().time()


@pytest.mark.virtual_time
async def test_no_row_fails_while_the_service_is_away_for_a_while(written):
    rows = [str(number) for number in range(30)]
    results = await answer_in_memory(written(*map(chat, rows)), Away())
    assert sorted(texts(results)) == sorted(f"<{row}>" for row in rows)


async def test_a_run_that_is_cancelled_goes_on_where_it_was(written, answer, tmp_path):
    path = written(*(chat(str(i)) for i in range(30)))
    for num_rows in (0, 1, 2, 3, 5, 8):
        service = Stuck(num_rows)
        running = asyncio.create_task(answer(path, service))
        await service.hangs.wait()
        running.cancel()
        await asyncio.wait([running])
    counts = await answer(path, Echo())
    assert counts.before.num_rows > 8 and counts.num_done == 30
    assert texts(results_in(tmp_path / "out.jsonl")) == [f"<{i}>" for i in range(30)]
