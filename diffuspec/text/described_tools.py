"""Tools for chat templates that have no place for them: described and called in plain text.

Calls have the format of Hermes, which `diffuspec.serve` reads unless a template has another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

_Message: TypeAlias = dict[str, Any]
_SYSTEM_ROLES = ("system", "developer")
_INTRODUCTION = """\
You can call functions. Each line within <tools> describes one:
<tools>
{tools}
</tools>
To call one, write its name and arguments as a JSON object, once for each call:
<tool_call>
{{"name": "NAME", "arguments": {{...}}}}
</tool_call>
The results follow in <tool_response>."""


def with_described_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    takes_system: bool,
) -> list[_Message]:
    """Return a chat whose texts have its tools, calls and results.

    Tools are described in the first system message, or in the first message if the template takes
    none; results become messages of the user, adjacent ones a single one.
    """
    written: list[_Message] = []
    is_result = False
    for message in messages:
        if message["role"] != "tool":
            written.append(_with_calls(message))
        elif is_result:
            written[-1]["content"] += "\n" + _result(message)
        else:
            written.append({"role": "user", "content": _result(message)})
        is_result = message["role"] == "tool"
    return _introduced(written, tools, takes_system) if tools else written


def _introduced(
    messages: list[_Message], tools: Sequence[Mapping[str, Any]], takes_system: bool
) -> list[_Message]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    introduction = _INTRODUCTION.format(tools=lines)
    if takes_system and messages[0]["role"] not in _SYSTEM_ROLES:
        return [{"role": "system", "content": introduction}, *messages]
    first, *rest = messages
    text = _text(first["content"])
    joined = f"{text}\n\n{introduction}" if takes_system else f"{introduction}\n\n{text}"
    return [{**first, "content": joined}, *rest]


def _with_calls(message: Mapping[str, Any]) -> _Message:
    """Return a message whose calls are part of its text."""
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    if calls := message.get("tool_calls"):
        written = [_text(message["content"]), *(_call(call["function"]) for call in calls)]
        plain["content"] = "\n".join(text for text in written if text)
    return plain


def _call(function: Mapping[str, Any]) -> str:
    call = {"name": function["name"], "arguments": function["arguments"]}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _result(message: Mapping[str, Any]) -> str:
    return f"<tool_response>\n{_text(message['content'])}\n</tool_response>"


def _text(content: str | Sequence[Mapping[str, str]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
