"""Messages of a conversation in a body, and the calls within them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, WithJsonSchema, model_validator

from diffuspec.serve.openai.body_parts import (
    MAX_PARTS,
    MAX_TOOLS,
    CacheControl,
    MessagePart,
    OpenPart,
    RefusalPart,
    Role,
    only,
)

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
        None, description="Of the assistant; the chat template keeps it or leaves it out."
    )
    reasoning: str | None = Field(None, description="The same, by its newer name.")
    refusal: str | None = Field(None, description="Of the assistant, in place of a content.")
    annotations: list[Any] | None = Field(None, description="Ignored: OpenAI's answers have it.")
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
