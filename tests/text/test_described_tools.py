"""Tools, calls and results as texts of a chat, for templates that have no place for them."""

from __future__ import annotations

from typing import Any

import pytest

from diffuspec.text.described_tools import with_described_tools

TOOL = {"type": "function", "function": {"name": "weather"}}
USER = {"role": "user", "content": "Hm?"}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"a": "ü"}}}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "Rain."}


def described(*messages: Any, takes_system: bool = True) -> list[dict[str, Any]]:
    return with_described_tools(messages, [TOOL], takes_system=takes_system)


def test_tools_are_described_in_a_system_message_of_their_own_or_the_given_one():
    system, user = described(USER)
    assert system["role"] == "system" and '<tools>\n{"type": "function"' in system["content"]
    assert '<tool_call>\n{"name": "NAME", "arguments": {...}}\n' in system["content"]
    assert user == USER
    brief = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    joined, user = described(brief, USER)
    assert joined["content"] == f"Be brief.\n\n{system['content']}" and user == USER


def test_tools_are_described_in_the_first_message_where_there_is_no_system_message():
    [user] = described(USER, takes_system=False)
    assert user["role"] == "user" and user["content"].endswith("<tool_response>.\n\nHm?")


def test_calls_are_part_of_the_text_and_adjacent_results_are_one_message_of_the_user():
    answer = {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]}
    _, _, said, results, user = described(USER, answer, RESULT, RESULT, USER)
    call = '<tool_call>\n{"name": "weather", "arguments": {"a": "ü"}}\n</tool_call>'
    assert said == {"role": "assistant", "content": f"I look.\n{call}\n{call}"}
    result = "<tool_response>\nRain.\n</tool_response>"
    assert results == {"role": "user", "content": f"{result}\n{result}"} and user == USER


@pytest.mark.parametrize("content", ["", "Hm."])
def test_a_chat_without_tools_calls_and_results_is_left_as_it_is(content: str):
    chat = [USER, {"role": "assistant", "content": content}]
    assert with_described_tools(chat, [], takes_system=True) == chat
