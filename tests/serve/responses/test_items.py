"""Input items as the messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from diffuspec.serve.responses.items import InputItem, messages_of

USER = {"role": "user", "content": "Hm?"}
THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}
THOUGHT |= {"content": [{"type": "reasoning_text", "text": "So."}]}
SUMMED = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "So."}]}
SAID = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "Rain."}

TEXT = [{"type": "text", "text": "I look."}]
ASKED = {"role": "user", "content": "Hm?"}
ONE_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOLD = {"role": "tool", "tool_call_id": "c1", "content": "Rain."}


def messages(*items: Any) -> list[dict[str, Any]]:
    return messages_of([TypeAdapter(InputItem).validate_python(item) for item in items])


def test_a_text_is_a_message_after_the_instructions():
    assert messages_of("Hm?", "Be brief.") == [{"role": "system", "content": "Be brief."}, ASKED]


@pytest.mark.parametrize("thought", [THOUGHT, SUMMED])
def test_the_items_of_one_answer_are_one_message(thought: Any):
    answer = {"role": "assistant", "reasoning_content": "So.", "content": TEXT}
    answer["tool_calls"] = [ONE_CALL, ONE_CALL]
    found = messages(USER, thought, SAID, CALL, CALL, RESULT, RESULT, USER)
    assert found == [ASKED, answer, TOLD, TOLD, ASKED]


def test_answers_that_follow_each_other_are_several_messages():
    one, called = {"role": "assistant", "content": TEXT}, {"role": "assistant"}
    assert messages(SAID, SAID, CALL) == [one, one | {"tool_calls": [ONE_CALL]}]
    assert messages(CALL, RESULT, CALL, SAID) == [
        called | {"tool_calls": [ONE_CALL]},
        TOLD,
        called | {"tool_calls": [ONE_CALL]},
        one,
    ]


def test_a_refusal_is_what_was_said_and_encrypted_reasoning_is_nothing():
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages(refused)[0]["content"] == [{"type": "text", "text": "No."}]
    assert messages(USER, {"type": "reasoning", "summary": [], "encrypted_content": "x"}) == [ASKED]
