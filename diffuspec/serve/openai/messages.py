"""Messages of a conversation as chat templates read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.body_parts import RefusalPart, TextPart
from diffuspec.serve.openai.message_bodies import Message, ToolCall
from diffuspec.serve.openai.tool_calls import known_to_template, read_arguments


def plain_message(message: Message, conventions: Conventions) -> dict[str, Any]:
    """Return a message as chat templates read it: content as one text, arguments as an object."""
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {
        "role": role,
        "content": _content(message.content or message.refusal or ""),
    }
    is_short = conventions.has_short_ids
    if message.tool_calls:
        plain["tool_calls"] = [_plain_call(call, is_short) for call in message.tool_calls]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = known_to_template(message.tool_call_id, is_short=is_short)
    if reasoning := message.reasoning_content or message.reasoning:
        plain["reasoning_content"] = plain["reasoning"] = reasoning
        if "thinking" in conventions.template and conventions.has_channels and message.tool_calls:
            plain["thinking"] = reasoning
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _content(content: str | Sequence[TextPart | RefusalPart]) -> str | list[dict[str, str]]:
    """Return a text, or the parts of one where there are several."""
    if isinstance(content, str) or len(content) == 1:
        return text_of(content)
    return [{"type": "text", "text": text_of([part])} for part in content]


def text_of(content: str | Sequence[TextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _plain_call(call: ToolCall, is_short: bool) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": read_arguments(call.function.arguments)}
    given = None if call.id is None else known_to_template(call.id, is_short=is_short)
    return {"id": given, "type": "function", "function": function}
