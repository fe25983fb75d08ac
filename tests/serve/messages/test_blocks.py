"""Turns of content blocks as the messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from diffuspec.serve.messages.blocks import Turn, messages_of

SAID = {"type": "text", "text": "I look.", "cache_control": {"type": "ephemeral"}}
THOUGHT = {"type": "thinking", "thinking": "So.", "signature": "x"}
USE = {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "Rain."}
TEXT = {"type": "text", "text": "I look."}


def messages(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    made = [Turn.model_validate({"role": role, "content": content}) for role, content in turns]
    return messages_of(made, None)


def test_an_answer_is_one_message_whatever_its_blocks():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    redacted = {"type": "redacted_thinking", "data": "x"}
    assert messages(("assistant", [redacted, THOUGHT, SAID, USE, USE])) == [
        {
            "role": "assistant",
            "content": [TEXT],
            "reasoning_content": "So.",
            "tool_calls": [call, call],
        }
    ]


def test_results_are_messages_of_their_own_and_texts_that_adjoin_are_one():
    told = {"role": "tool", "tool_call_id": "c1", "content": "Rain."}
    found = messages(("user", [RESULT, RESULT | {"is_error": True}, SAID, SAID]))
    wrong = told | {"content": "Error: Rain."}
    assert found == [told, wrong, {"role": "user", "content": [TEXT, TEXT]}]
    assert messages(("user", [])) == [{"role": "user", "content": ""}]


def test_an_error_of_a_tool_is_marked_in_the_first_line_of_its_parts():
    marked = {"type": "text", "text": "Error: I look."}
    for parts, expected in (
        ([SAID, SAID], [marked, TEXT]),
        ([], [{"type": "text", "text": "Error: "}]),
    ):
        [message] = messages(("user", [RESULT | {"content": parts, "is_error": True}]))
        assert message["content"] == expected


@pytest.mark.parametrize(("role", "block"), [("assistant", RESULT), ("user", USE)])
def test_blocks_of_the_other_role_are_refused(role: str, block: Any):
    with pytest.raises(ValidationError, match="must be of the role"):
        messages((role, [block]))
