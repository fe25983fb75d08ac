"""The draft model for llama-cpp-python, called as `Llama.generate` calls one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffuspec.pairs.tiny import TARGET
from diffuspec.text.tokenizer import load_tokenizer
from diffuspec_client import Settings
from diffuspec_client.draft_service_pb2 import RowDraft, StepDrafts
from diffuspec_client.llama_cpp import LocalDrafts, RemoteDrafts, read_vocabulary
from tests.support.draft_streams import SECONDS, Scripted

TOKENIZER = TARGET / "tokenizer.json"
TEXT = [5 + number % 7 for number in range(64)]


def next_three(step: Any) -> StepDrafts:
    """Draft the next three tokens of TEXT."""
    size = step.rows[0].base_length + len(step.rows[0].token_ids)
    row = RowDraft(token_ids=TEXT[size : size + 3], confidences=[0.0] * 3)
    return StepDrafts(step_id=step.step_id, rows=[row])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Scripted, RemoteDrafts]]:
    address = f"unix:{tmp_path / 's'}"
    server = Scripted(address, next_three)
    drafts = RemoteDrafts(TOKENIZER, Settings(server=address, deadline_seconds=5.0))
    assert drafts._client.wait_until_connected(SECONDS)
    yield server, drafts
    drafts.close()
    server.stop()


def steps_of(server: Scripted) -> list[Any]:
    return [one.step for one in server.requests if one.WhichOneof("message") == "step"]


def test_drafts_are_integers_of_c_and_only_new_tokens_are_sent(served: Any):
    server, drafts = served
    table = np.zeros(64, np.intc)  # of Llama, which hands out a part of it and then writes on
    table[:9] = TEXT[:9]
    for size in (9, 13, 14):
        table[:size] = TEXT[:size]
        draft = drafts(table[:size])
        assert draft.dtype == np.intc and draft.tolist() == TEXT[size : size + 3]
        table[size : size + 3] = 4000  # what was drafted, and not accepted
    rows = [step.rows[0] for step in steps_of(server)]
    assert [row.base_length for row in rows] == [0, 9, 13]
    assert {row.request_id for row in rows} == {"r1"}


def test_another_text_is_another_request_and_the_first_one_ends(served: Any):
    server, drafts = served
    drafts(np.array(TEXT[:9], np.intc))
    for size in range(20, 27):
        drafts(np.array([*TEXT[3 : size + 3]], np.intc))
    steps = steps_of(server)
    assert [step.rows[0].request_id for step in steps] == ["r1", *["r2"] * 7]
    assert [name for step in steps for name in step.ended_request_ids] == ["r1"]


def test_without_a_server_and_for_any_input_there_is_no_draft(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    drafts = RemoteDrafts(TOKENIZER, Settings(server=f"unix:{tmp_path / 'none'}"))
    for given in (np.array([1, 2], np.intc), np.zeros(0, np.intc), None, np.zeros((2, 2), np.intc)):
        draft = drafts(given, any_option=1)  # type: ignore[arg-type]
        assert draft.dtype == np.intc and draft.tolist() == []
    assert caplog.text.count("no drafts in this step") == 1
    drafts.close()


def test_a_killed_server_costs_drafts_alone(served: Any):
    server, drafts = served
    assert drafts(np.array(TEXT[:9], np.intc)).tolist()
    server.stop()
    found = [drafts(np.array(TEXT[:size], np.intc)).tolist() for size in range(10, 20)]
    assert found == [[]] * 10


def test_a_drafter_in_this_process_drafts_for_the_present_prefix():
    server = {"drafter": {"kind": "pld"}, "tokenizer": str(TARGET), "num_draft_tokens": 3}
    drafts = LocalDrafts(TOKENIZER, server, max_draft_tokens=2)
    found = [drafts(np.array(TEXT[:size], np.intc)) for size in range(20, 30)]
    drafts.close()
    assert {one.dtype for one in found} == {np.dtype(np.intc)}
    drafted = [(size, one.tolist()) for size, one in enumerate(found, 20) if len(one)]
    assert any(draft == TEXT[size : size + len(draft)] for size, draft in drafted)
    assert all(len(draft) <= 2 for _, draft in drafted)
    assert drafts(np.array(TEXT[:30], np.intc)).tolist() == []


def test_the_vocabulary_is_that_of_the_tokenizer(tmp_path: Path):
    assert read_vocabulary(TOKENIZER) == load_tokenizer(TARGET).get_vocab()
    unigram = {"model": {"vocab": [["<unk>", 0.0], ["a", -1.5]]}, "added_tokens": []}
    (tmp_path / "t.json").write_text(json.dumps(unigram))
    assert read_vocabulary(tmp_path / "t.json") == {"<unk>": 0, "a": 1}
    (tmp_path / "t.json").write_text("[]")
    with pytest.raises(ValueError, match=r"must be a tokenizer\.json of the target"):
        read_vocabulary(tmp_path / "t.json")
