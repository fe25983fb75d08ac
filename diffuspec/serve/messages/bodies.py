"""The bodies of POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from diffuspec.serve.messages.blocks import Texts, Turn
from diffuspec.serve.openai.bodies import MAX_MESSAGES
from diffuspec.serve.openai.body_parts import (
    MAX_TOOLS,
    NO_TOOLS,
    NULL_SCHEMA,
    CacheControl,
    FunctionNamePattern,
    Ignored,
    OpenPart,
    Part,
    only,
)

OwnTool: TypeAlias = Annotated[Any, only("custom", NO_TOOLS), WithJsonSchema({"const": "custom"})]
NoContainer: TypeAlias = Annotated[Any, only(None, NO_TOOLS), NULL_SCHEMA]
NoEdits: TypeAlias = Annotated[Any, only(None, "conversations are not edited"), NULL_SCHEMA]


class AnthropicTool(OpenPart):
    """A tool that the answer may call."""

    type: OwnTool = None
    name: FunctionNamePattern
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool = Field(False, description="Whether inputs must fit the schema.")
    cache_control: CacheControl = None


class ToolChoice(Part):
    """Which calls are allowed or required: `any` requires at least one, `tool` the named one."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Thinking(OpenPart):
    """Whether to reason, for chat templates with enable_thinking; adaptive: their default."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(
        None, ge=1, description="Not enforced: max_tokens limits reasoning and answer together."
    )
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted` omits the reasoning; it is never summarised."
    )


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
    tools: list[AnthropicTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl = None
    container: NoContainer = None
    context_management: NoEdits = None
    mcp_servers: NoContainer = None
    inference_geo: Ignored = None
    speed: Ignored = None
    diagnostics: Ignored = None
    user_profile_id: Ignored = None
    workspace_id: Ignored = None


class MessagesBody(CountBody):
    """The body of POST /v1/messages."""

    max_tokens: int = Field(
        ge=1,
        description="Maximum length of the answer, in tokens; reduced to what fits into the "
        "context.",
    )
    stop_sequences: list[str] | None = None
    stream: bool = Field(False, description="Send the answer as events while it is generated.")
