"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from diffuspec.serve.messages.blocks import Texts, Turn
from diffuspec.serve.openai.bodies import MAX_MESSAGES
from diffuspec.serve.openai.body_parts import (
    MAX_TOOLS,
    CacheControl,
    DescribedPart,
    FunctionNamePattern,
    OpenPart,
    Part,
    Thinking,
)
from diffuspec.serve.openai.near_keys import near_key


class AnthropicTool(DescribedPart):
    """A tool that the answer may call."""

    type: Literal["custom"] = "custom"
    name: FunctionNamePattern
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool = Field(False, description="Whether inputs must fit the schema.")
    cache_control: CacheControl = None


class ServerTool(OpenPart):
    """A tool of Anthropic's own types: left out, and named in the answer's header."""

    type: str = Field(max_length=64)


def _kind_of(given: object) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    is_own = not isinstance(kind, str) or near_key(kind, ("custom",)) is not None
    return "AnthropicTool" if is_own else "ServerTool"


AnyTool: TypeAlias = Annotated[
    Annotated[AnthropicTool, Tag("AnthropicTool")] | Annotated[ServerTool, Tag("ServerTool")],
    Discriminator(_kind_of),
]


class ToolChoice(Part):
    """Which calls are allowed or required: `any` requires at least one, `tool` the named one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class JsonFormat(Part):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Part):
    """The format of the answer, and how much to think."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="How much to think, for chat templates that have reasoning_effort."
    )
    format: JsonFormat | None = None


class CountBody(BaseModel):
    """The body of POST /v1/messages/count_tokens; a body of /v1/messages is also accepted."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    model: str | None = Field(None, description="Name of the served model. May be omitted.")
    messages: list[Turn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Texts | None = None
    tools: list[AnyTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = Field(
        None, description="The same as output_config.format, under its older name."
    )
    cache_control: CacheControl = None


class MessagesBody(CountBody):
    """The body of POST /v1/messages."""

    max_tokens: int = Field(
        ge=1,
        description="Maximum length of the answer, in tokens; reduced to what fits into the "
        "context.",
    )
    stop_sequences: list[str] | None = None
    stream: bool = Field(False, description="Send the answer as events while it is generated.")
