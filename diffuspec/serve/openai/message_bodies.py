"""Messages of a conversation in a body, and the calls within them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, WithJsonSchema, model_validator

from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.body_parts import (
    MAX_PARTS,
    MAX_TOOLS,
    CacheControl,
    MessagePart,
    OpenPart,
    RefusalPart,
    Role,
    TextPart,
    only,
)
from diffuspec.serve.openai.tool_calls import known_to_template, read_arguments

ClientsOwn: TypeAlias = Annotated[Any, Field(description="Ignored: LiteLLM adds it to answers.")]


class FunctionCall(OpenPart):
    name: str
    arguments: str = Field("", description="JSON text.")
    parsed_arguments: Any = Field(None, description="Ignored: openai-python's streams add it.")


class ToolCall(OpenPart):
    id: str | None = None
    index: int | None = Field(None, description="Ignored: openai-python's streams keep it.")
    type: Literal["function"] = "function"
    function: FunctionCall
    provider_specific_fields: ClientsOwn = None


_NOTHING = WithJsonSchema({"type": ["null", "boolean"], "const": False})
OldCall: TypeAlias = Annotated[Any, only(False, "calls are tool_calls"), _NOTHING]
Sound: TypeAlias = Annotated[Any, only(False, "only text is read"), _NOTHING]
Unfinished: TypeAlias = Annotated[
    Any, only(False, "continue_final_message has the last message go on"), _NOTHING
]


class Message(OpenPart):
    role: Role
    content: str | Annotated[list[MessagePart], Field(max_length=MAX_PARTS)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(
        None, description="The assistant's reasoning; the chat template keeps it or omits it."
    )
    reasoning: str | None = Field(None, description="The same, under its newer name.")
    refusal: str | None = Field(None, description="The assistant's refusal, instead of content.")
    annotations: list[Any] | None = Field(None, description="Ignored: OpenAI's answers contain it.")
    provider_specific_fields: ClientsOwn = None
    parsed: Any = Field(None, description="Ignored: openai-python adds it to parsed answers.")
    cache_control: CacheControl = None
    function_call: OldCall = None
    audio: Sound = None
    prefix: Unfinished = None
    partial: Unfinished = None

    @model_validator(mode="after")
    def _refuses_as_assistant(self) -> Message:
        parts = self.content if isinstance(self.content, list) else []
        has_parts = any(isinstance(part, RefusalPart) for part in parts)
        if self.role != "assistant" and (has_parts or self.refusal is not None):
            raise ValueError("must be of the role assistant to have a refusal")
        if self.refusal and self.content:
            raise ValueError("must have a content or a refusal, not both")
        return self


def plain_message(message: Message, conventions: Conventions) -> dict[str, Any]:
    """Return a message as chat templates expect it: content as one text, arguments as an object."""
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
    """Return a text, or its parts if there are several."""
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
