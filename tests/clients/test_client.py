"""The client against real draft servers: what they send, and what it does when they fail."""

from __future__ import annotations

import os
import queue
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from diffuspec_client import Draft, DraftClient, Row, Settings
from diffuspec_client.connection import Connection
from diffuspec_client.draft_service_pb2 import Hello, RowDraft, StepDrafts
from diffuspec_client.patience import Patience
from diffuspec_client.vocabulary import Vocabulary
from tests.clients.conftest import StartServer, kill
from tests.support.draft_streams import SECONDS, TOKENS, VOCABULARY, Scripted


def connect(tmp_path: Path, vocabulary: Vocabulary = VOCABULARY, **given: Any) -> DraftClient:
    settings = Settings(server=f"unix:{tmp_path / 'd'}", deadline_seconds=5.0)
    limits = {"max_model_len": 1024, "max_requests": 4, "max_draft_tokens": 8, **given}
    return DraftClient(settings, vocabulary=vocabulary, **limits)


def rows(*texts: list[int]) -> list[Row]:
    return [
        Row(f"r{number}", np.array(text, np.int32), min(len(text), 4))
        for number, text in enumerate(texts)
    ]


def text_of(size: int) -> list[int]:
    """Tokens that repeat themselves, which any drafter can follow."""
    return [5 + number % 7 for number in range(size)]


def drafts_within(client: DraftClient, seconds: float = SECONDS) -> list[list[Draft]]:
    """Take steps that grow two requests until there are drafts."""
    until, size, found = time.monotonic() + seconds, 20, list[list[Draft]]()
    while time.monotonic() < until:
        found.append(client.step(rows(text_of(size), text_of(size)[1:])))
        if any(draft.token_ids for draft in found[-1]):
            return found
        size += 1
        time.sleep(0.01)
    raise AssertionError("no drafts came")


@pytest.mark.process
def test_drafts_come_from_the_command_and_again_after_it_was_killed_until_it_is_told_to_end(
    draft_server: StartServer, tmp_path: Path
):
    process = draft_server()
    assert os.stat(tmp_path / "d").st_mode & 0o077 == 0  # its owner's alone
    client = connect(tmp_path)
    assert client.wait_until_connected(SECONDS)
    drafts = drafts_within(client)[-1]
    assert all(len(one.token_ids) == len(one.confidences) <= 8 for one in drafts)
    kill(process)
    started = time.monotonic()
    after = [client.step(rows(text_of(60 + number))) for number in range(20)]
    assert time.monotonic() - started < 5.0  # not even one deadline
    assert not any(draft.token_ids for one in after[1:] for draft in one)
    process = draft_server()
    assert client.wait_until_connected(SECONDS)
    drafts_within(client)
    client.step(rows(text_of(90)))
    kill(process)  # the second one lost at the first request
    process = draft_server()
    client.step(rows(text_of(99)))
    assert client.wait_until_connected(SECONDS)
    first, other = drafts_within(client)[-1]
    assert first == Draft(source="barred") and other.token_ids
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert client.step(rows(text_of(9)))[0].token_ids == []
    client.close()


@pytest.mark.process
def test_another_vocabulary_is_refused_with_the_first_token_that_differs(
    draft_server: StartServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    draft_server()
    other = {
        ("changed" if token_id == 11 else token): token_id for token, token_id in TOKENS.items()
    }
    client = connect(tmp_path, Vocabulary(other))
    until = time.monotonic() + SECONDS
    while "token id 11 is 'changed' in the engine" not in caplog.text:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not client.is_connected
    assert client.step(rows(text_of(9))) == [Draft()]
    client.close()


# ---- servers that break the protocol


@pytest.mark.parametrize(
    ("row", "given"),
    [
        ({"token_ids": [1, 2, 3, 4], "confidences": [0.0] * 4}, {}),
        ({"token_ids": [VOCABULARY.size], "confidences": [0.0]}, {}),
        ({"token_ids": [1, 2], "confidences": [0.0]}, {}),
        ({"token_ids": [1], "confidences": [0.0], "parents": [-1]}, {}),
        ({"token_ids": [1, 2], "confidences": [0.0] * 2, "parents": [-1, 1]}, {"is_tree": True}),
        ({"token_ids": [1], "confidences": [0.0], "parents": [-2]}, {"is_tree": True}),
        ({"token_ids": [1], "confidences": [0.0]}, {"is_tree": True}),
    ],
    ids=["long", "unknown", "confidences", "no tree", "order", "root", "no parents"],
)
def test_a_draft_that_the_engine_could_not_take_is_left_out(
    scripted: Any, row: dict[str, Any], given: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    answers = lambda step: StepDrafts(step_id=step.step_id, rows=[RowDraft(**row)])  # noqa: E731
    _, client = scripted(answers, **given)
    assert [client.step(rows(text_of(9)))[0].token_ids for _ in range(3)] == [[], [], []]
    assert caplog.text.count("a draft is left out") == 1  # not once for each step


def test_a_right_draft_is_passed_on(scripted: Any):
    row = RowDraft(token_ids=[1, 2], confidences=[-0.5, -1.0], source="DRAFT_SOURCE_FRESH")
    _, client = scripted(lambda step: StepDrafts(step_id=step.step_id, rows=[row]))
    assert client.step(rows(text_of(9))) == [Draft([1, 2], [], [-0.5, -1.0], "fresh")]


def test_a_server_that_does_not_answer_costs_the_deadline_and_no_more(scripted: Any):
    _, client = scripted(lambda step: None, deadline=0.05)
    started = time.monotonic()
    assert client.step(rows(text_of(9))) == [Draft()]
    assert time.monotonic() - started < 2.0


def test_a_server_that_does_not_answer_is_asked_less_and_less(scripted: Any):
    _, client = scripted(lambda step: None, deadline=0.05)
    sources = [client.step(rows(text_of(9 + number)))[0].source for number in range(3)]
    assert sources == ["", "paused", "paused"]


def test_pauses_grow_with_the_steps_that_are_missed_and_end_with_an_answer():
    patience, now, pauses = Patience(), 10.0, []
    for _ in range(6):
        patience.on_silence(0.25, now)
        pauses.append(next(k for k in range(1000) if patience.allows(now + 0.25 * k)))
        now += 100.0
    assert pauses == [1, 4, 16, 50, 50, 50]
    patience.on_answer()
    patience.on_silence(0.25, now)
    assert not patience.allows(now + 0.2) and patience.allows(now + 0.25)


def test_an_answer_to_another_step_or_with_other_rows_is_no_answer(scripted: Any):
    row = RowDraft(token_ids=[1], confidences=[0.0])
    _, client = scripted(lambda step: StepDrafts(step_id=step.step_id + 1, rows=[row]), 0.05)
    assert client.step(rows(text_of(9))) == [Draft()]


def test_each_step_sends_what_the_server_lacks(scripted: Any):
    unknown = RowDraft(source="DRAFT_SOURCE_UNKNOWN_BASE")
    told: list[int] = []

    def answer(step: Any) -> StepDrafts:
        told.append(step.step_id)
        found = [unknown if step.step_id == 2 else RowDraft() for _ in step.rows]
        return StepDrafts(step_id=step.step_id, rows=found)

    server, client = scripted(answer)
    for size in (5, 7, 9, 10):
        client.step(rows(text_of(size)))
    client.step([], ended=["r0"])
    client.step([Row("next", np.array([1, 2], np.int32), 2)], ended=["never seen"])
    steps = [one.step for one in server.requests[1:]]
    sent = [(one.rows[0].base_length, len(one.rows[0].token_ids)) for one in steps]
    assert sent == [(0, 5), (5, 2), (0, 9), (9, 1), (0, 2)]
    assert [[*one.ended_request_ids] for one in steps] == [[], [], [], [], ["r0"]]


def test_rows_that_cannot_be_sent_are_answered_without_drafts(
    scripted: Any, caplog: pytest.LogCaptureFixture
):
    _, client = scripted(lambda step: StepDrafts(step_id=step.step_id, rows=[RowDraft()]))
    wrong = Row("r", None, 1)  # type: ignore[arg-type]
    assert client.step([wrong]) == [Draft()]
    assert "the engine goes on without drafts" in caplog.text


# ---- settings


def test_settings_come_from_the_environment_and_are_overridden_by_name():
    environment = {
        "DIFFUSPEC_DRAFT_SERVER": "unix:/a",
        "DIFFUSPEC_DRAFT_DEADLINE_SECONDS": "0.5",
        "OTHER": "x",
    }
    found = Settings.read({"tenant": "t"}, environment)
    assert found == Settings(server="unix:/a", deadline_seconds=0.5, tenant="t")
    assert Settings.read({"server": "b:1"}, environment).server == "b:1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"adress": "x"}, "unknown setting 'adress'; known are server, deadline_seconds"),
        ({"deadline_seconds": 0}, "deadline_seconds must be above 0 and at most 60, got 0"),
        ({"deadline_seconds": "soon"}, "could not convert"),
        ({"tls_ca": "x"}, "tls_ca, tls_certificate and tls_key belong together"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(given: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        Settings.read(given, {})


def test_a_connection_that_is_closed_while_it_connects_leaves_no_stream_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    connect, messages = Connection._channel, queue.SimpleQueue[Any]()

    def close_first(connection: Connection) -> grpc.Channel:
        connection.close()
        return connect(connection)

    monkeypatch.setattr(Connection, "_channel", close_first)
    server = Scripted(f"unix:{tmp_path / 's'}", lambda _: None)
    settings = Settings(server=f"unix:{tmp_path / 's'}")
    Connection(settings, Hello(), VOCABULARY, messages.put)
    assert messages.get(timeout=SECONDS) is None
    server.stop()
