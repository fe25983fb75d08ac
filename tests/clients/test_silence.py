"""Steps that a draft server has said it need not hear of are not reported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from diffuspec_client import Draft, DraftClient, Row, Settings
from diffuspec_client.draft_service_pb2 import (
    DRAFT_SOURCE_NOT_WORTH_IT,
    ConnectResponse,
    EngineStep,
    Hello,
    RowDraft,
    StepDrafts,
    Welcome,
)
from diffuspec_client.silence import MAX_SILENT_STEPS
from diffuspec_client.vocabulary import Vocabulary
from tests.support.draft_streams import StreamServer

Pair: TypeAlias = tuple["QuietServer", DraftClient]
Start: TypeAlias = Callable[..., Pair]


class QuietServer(StreamServer):
    """Has no drafts, or the one given, and says for how many steps there will be none."""

    def __init__(self, address: str, num_silent_steps: int, draft: Sequence[int] = ()) -> None:
        self.hellos: list[Hello] = []
        self.steps: list[EngineStep] = []
        self.draft = draft
        self._num_silent_steps = num_silent_steps
        super().__init__(address)

    def _connect(self, requests: Any, context: Any) -> Iterator[ConnectResponse]:
        self.hellos.append(next(requests).hello)
        yield ConnectResponse(welcome=Welcome(protocol_version=1))
        for message in requests:
            step = message.step
            self.steps.append(step)
            row = RowDraft(
                source=DRAFT_SOURCE_NOT_WORTH_IT,
                token_ids=self.draft,
                confidences=[-1.0] * len(self.draft),
            )
            answer = StepDrafts(step_id=step.step_id, rows=[row] * len(step.rows))
            answer.num_silent_steps = self._num_silent_steps
            yield ConnectResponse(drafts=answer)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server and a client of it; both end with the test."""
    address = f"unix:{tmp_path / 'd'}"
    with contextlib.ExitStack() as stack:

        def new(num_silent_steps: int, draft: Sequence[int] = (), **given: Any) -> Pair:
            server = QuietServer(address, num_silent_steps, draft)
            stack.callback(server.stop)
            client = DraftClient(
                Settings(server=address, deadline_seconds=5.0),
                vocabulary=Vocabulary({f"t{number}": number for number in range(64)}),
                max_model_len=1024,
                max_requests=4,
                max_draft_tokens=8,
                **given,
            )
            stack.callback(client.close)
            assert client.wait_until_connected(20.0)
            return server, client

        yield new


def take(client: DraftClient, size: int, *names: str, ended: Sequence[str] = ()) -> list[Draft]:
    return client.step([Row(name, np.arange(size, dtype=np.int32), 4) for name in names], ended)


def test_silent_steps_are_not_reported_and_their_tokens_come_with_the_next_one(start: Start):
    server, client = start(3)
    found = [take(client, size, "a", "b") for size in range(5, 14)]
    assert [len(one) for one in found] == [2] * 9
    assert [one[0].source for one in found] == ["not_worth_it", *["silent"] * 3] * 2 + [
        "not_worth_it"
    ]
    assert [one.num_silent_steps for one in server.steps] == [0, 3, 3]
    assert [one.step_id for one in server.steps] == [1, 2, 3]
    assert [one.rows[0].base_length for one in server.steps] == [0, 5, 9]
    assert [[*one.rows[1].token_ids] for one in server.steps[1:]] == [[5, 6, 7, 8], [9, 10, 11, 12]]
    assert all(one.verify_seconds > 0 for one in server.steps[1:])


def test_other_requests_end_the_silence(start: Start):
    server, client = start(50)
    for size, names in [(5, "a"), (6, "a"), (7, "ab"), (8, "ab"), (9, "b"), (10, "b"), (11, "c")]:
        take(client, size, *names, ended=["a"] if names == "c" else ())
    reported = [[row.request_id for row in one.rows] for one in server.steps]
    assert reported == [["a"], ["a", "b"], ["b"], ["c"]]
    assert [one.num_silent_steps for one in server.steps] == [0, 1, 1, 1]
    assert [*server.steps[-1].ended_request_ids] == ["a"]


def test_silence_is_bounded_whatever_the_server_says(start: Start):
    server, client = start(2**31)
    for size in range(5, 7 + MAX_SILENT_STEPS):
        take(client, size, "a")
    assert [one.num_silent_steps for one in server.steps] == [0, MAX_SILENT_STEPS]
    assert server.hellos[0].max_silent_steps == MAX_SILENT_STEPS


def test_an_answer_with_drafts_begins_no_silence(start: Start):
    server, client = start(9, draft=[1, 2])
    assert [take(client, size, "a")[0].token_ids for size in (5, 6)] == [[1, 2]] * 2
    assert len(server.steps) == 2


def test_another_server_is_asked_at_once(start: Start):
    server, client = start(50)
    take(client, 5, "a")
    assert take(client, 6, "a")[0].source == "silent"
    server.stop()
    while client.is_connected:
        pass
    server, _ = start(50)
    assert client.wait_until_connected(20.0)
    assert take(client, 7, "a")[0].source == "not_worth_it"
    assert [*server.steps[0].rows[0].token_ids] == [*range(7)]


def test_an_engine_that_does_not_wait_reports_each_step(start: Start):
    server, _ = start(0, on_outcomes=lambda table: None)
    assert server.hellos[0].max_silent_steps == 0
