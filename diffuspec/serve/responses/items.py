"""Input items of /v1/responses, and their conversion to chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from diffuspec.serve.openai.body_parts import MAX_PARTS, NO_TOOLS, OpenPart
from diffuspec.serve.responses.tools import flat_name

_TEXTS = ("input_text", "output_text", "text")
_STORED = "this service stores no items: send the item itself (Vercel's SDK: store: false)"


class Content(OpenPart):
    """A text in an item."""

    type: Literal["input_text", "output_text", "text", "refusal"]
    text: str = ""
    refusal: str = ""

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: object) -> object:
        if isinstance(given, dict) and given.get("type") not in (*_TEXTS, "refusal"):
            raise ValueError(
                "must be of type input_text, output_text or refusal: text alone is read"
            )
        return given


Contents: TypeAlias = str | Annotated[list[Content], Field(max_length=MAX_PARTS)]


class MessageItem(OpenPart):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Contents


class CallItem(OpenPart):
    """A function call of an earlier answer."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = Field(None, description="The group of the function, if it has one.")
    arguments: str = Field("", description="JSON text.")


class CallOutputItem(OpenPart):
    """The result of a function call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Contents


class Thoughts(OpenPart):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(OpenPart):
    """Reasoning of an earlier answer; the chat template keeps it or omits it."""

    type: Literal["reasoning"]
    summary: Annotated[list[Thoughts], Field(max_length=MAX_PARTS)] | None = None
    content: Annotated[list[Thoughts], Field(max_length=MAX_PARTS)] | None = None


class OtherItem(OpenPart):
    """Any other item, which is refused."""

    @model_validator(mode="before")
    @classmethod
    def _refused(cls, given: object) -> object:
        if not isinstance(given, dict):
            raise ValueError("must be an object")
        if given.get("type") == "item_reference":
            raise ValueError(f"must not be an item_reference: {_STORED}")
        raise ValueError(
            f"must be of type message, function_call, function_call_output or reasoning: {NO_TOOLS}"
        )


_KINDS = {
    "message": "MessageItem",
    "function_call": "CallItem",
    "function_call_output": "CallOutputItem",
    "reasoning": "ReasoningItem",
}


def _kind_of(given: object) -> str:
    if not isinstance(given, dict):
        return "OtherItem"
    is_message = "role" in given and "type" not in given
    return "MessageItem" if is_message else _KINDS.get(str(given.get("type")), "OtherItem")


InputItem: TypeAlias = Annotated[
    Annotated[MessageItem, Tag("MessageItem")]
    | Annotated[CallItem, Tag("CallItem")]
    | Annotated[CallOutputItem, Tag("CallOutputItem")]
    | Annotated[ReasoningItem, Tag("ReasoningItem")]
    | Annotated[OtherItem, Tag("OtherItem")],
    Discriminator(_kind_of),
]


def messages_of(
    items: str | Sequence[InputItem], instructions: str | None = None
) -> list[dict[str, Any]]:
    """Return the messages of a chat; the items of one answer become one assistant message."""
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    for item in items:
        if isinstance(item, CallOutputItem):
            result = {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
            messages.append(result)
        elif isinstance(item, MessageItem) and item.role != "assistant":
            messages.append({"role": item.role, "content": _text(item.content)})
        else:
            _add_to_answer(messages, item)
    return messages


def _add_to_answer(messages: list[dict[str, Any]], item: InputItem) -> None:
    """Add an item of an answer to the message of that answer."""
    if isinstance(item, ReasoningItem):
        thoughts = "".join(one.text for one in item.content or item.summary or ())
        if thoughts:
            message = _open_answer(messages, {"content", "tool_calls"})
            message["reasoning_content"] = message.get("reasoning_content", "") + thoughts
    elif isinstance(item, CallItem):
        message = _open_answer(messages, set())
        function = {"name": flat_name(item.name, item.namespace), "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    elif isinstance(item, MessageItem):
        message = _open_answer(messages, {"content", "tool_calls"})
        message["content"] = _text(item.content)


def _open_answer(messages: list[dict[str, Any]], without: set[str]) -> dict[str, Any]:
    """Return the message to extend: the last one, if it is an answer without any of these keys."""
    if not messages or messages[-1]["role"] != "assistant" or without & messages[-1].keys():
        messages.append({"role": "assistant"})
    return messages[-1]


def _text(contents: Contents) -> str | list[dict[str, str]]:
    if isinstance(contents, str):
        return contents
    return [{"type": "text", "text": one.text or one.refusal} for one in contents]
