"""Content blocks of /v1/messages, and their conversion to chat messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from diffuspec.serve.openai.body_parts import MAX_PARTS, NO_TOOLS, CacheControl, OpenPart, TextPart

_ONLY_TEXT = "must be of type text: only text is read"
_ERROR_MARK = "Error: "


class TextBlock(TextPart):
    """A text. Citations are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("type") != "text":
            raise ValueError(_ONLY_TEXT)
        return given


Texts: TypeAlias = str | Annotated[list[TextBlock], Field(max_length=MAX_PARTS)]


class ThinkingBlock(OpenPart):
    """Reasoning of an earlier answer; the chat template keeps it or omits it."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field("", description="Not checked.")


class RedactedThinkingBlock(OpenPart):
    """Reasoning encrypted by another service; ignored."""

    type: Literal["redacted_thinking"]


class ToolUseBlock(OpenPart):
    """A tool call of an earlier answer."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl = None


class ToolResultBlock(OpenPart):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = ""
    is_error: bool = Field(False, description='If true, the result begins with "Error: ".')
    cache_control: CacheControl = None


class OtherBlock(OpenPart):
    """Any other block, which is refused."""

    @model_validator(mode="before")
    @classmethod
    def _refused(cls, given: object) -> object:
        if not isinstance(given, dict):
            raise ValueError("must be an object")
        raise ValueError(
            "must be of type text, thinking, tool_use or tool_result: only text is read, and "
            f"{NO_TOOLS}"
        )


_KINDS = {
    "text": "TextBlock",
    "thinking": "ThinkingBlock",
    "redacted_thinking": "RedactedThinkingBlock",
    "tool_use": "ToolUseBlock",
    "tool_result": "ToolResultBlock",
}


def _kind_of(given: object) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    return _KINDS.get(str(kind), "OtherBlock")


ContentBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("TextBlock")]
    | Annotated[ThinkingBlock, Tag("ThinkingBlock")]
    | Annotated[RedactedThinkingBlock, Tag("RedactedThinkingBlock")]
    | Annotated[ToolUseBlock, Tag("ToolUseBlock")]
    | Annotated[ToolResultBlock, Tag("ToolResultBlock")]
    | Annotated[OtherBlock, Tag("OtherBlock")],
    Discriminator(_kind_of),
]


class Turn(OpenPart):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Field(max_length=MAX_PARTS)]

    @model_validator(mode="after")
    def _has_blocks_of_its_role(self) -> Turn:
        blocks = self.content if isinstance(self.content, list) else []
        if self.role != "user" and any(isinstance(one, ToolResultBlock) for one in blocks):
            raise ValueError("must be of the role user to have a tool_result")
        if self.role != "assistant" and any(isinstance(one, ToolUseBlock) for one in blocks):
            raise ValueError("must be of the role assistant to have a tool_use")
        return self

    @property
    def has_calls(self) -> bool:
        return isinstance(self.content, list) and any(
            isinstance(one, ToolUseBlock) for one in self.content
        )


def messages_of(turns: Iterable[Turn], system: Texts | None) -> list[dict[str, Any]]:
    """Return the messages of a chat; results of tools are messages of their own."""
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": _text(system)})
    for turn in turns:
        if isinstance(turn.content, str):
            messages.append({"role": turn.role, "content": turn.content})
        elif turn.role == "assistant":
            messages.append(_answer(turn.content))
        else:
            messages += _asked(turn.role, turn.content)
    return messages


def _answer(blocks: Sequence[ContentBlock]) -> dict[str, Any]:
    """Return a message of the assistant."""
    message: dict[str, Any] = {"role": "assistant"}
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": json.dumps(block.input)},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    if texts := [block for block in blocks if isinstance(block, TextBlock)]:
        message["content"] = _text(texts)
    if thoughts := "".join(one.thinking for one in blocks if isinstance(one, ThinkingBlock)):
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = calls
    return message


def _asked(role: str, blocks: Sequence[ContentBlock]) -> list[dict[str, Any]]:
    """Return the messages of a turn that is not the assistant's, with adjacent texts joined."""
    messages: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, ToolResultBlock):
            messages.append(_result(block))
        elif isinstance(block, TextBlock):
            if not messages or messages[-1]["role"] != role:
                messages.append({"role": role, "content": []})
            messages[-1]["content"] += _text([block])
    return messages or [{"role": role, "content": ""}]


def _result(block: ToolResultBlock) -> dict[str, Any]:
    content = _text(block.content)
    if block.is_error:
        content = _marked_as_error(content)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _marked_as_error(content: str | list[dict[str, str]]) -> str | list[dict[str, str]]:
    """Return the content, marked on its first line: templates begin a line for each part."""
    if isinstance(content, str):
        return _ERROR_MARK + content
    first, *rest = content or [{"type": "text", "text": ""}]
    return [first | {"text": _ERROR_MARK + first["text"]}, *rest]


def _text(texts: str | Sequence[TextBlock]) -> str | list[dict[str, str]]:
    if isinstance(texts, str):
        return texts
    return [{"type": "text", "text": one.text} for one in texts]
