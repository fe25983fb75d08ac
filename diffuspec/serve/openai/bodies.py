"""The bodies of requests: what is OpenAI's own, besides the parameters of core/params.

Every parameter of `SamplingParams` is a key of both bodies too, by its own name; those are checked
by their declaration, see `parsing`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

MAX_CHOICES = 8
MAX_MESSAGES = 256
MAX_PROMPTS = 16
MAX_TOOLS = 128


class Part(BaseModel):
    """A part of a message: an object, whose unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TextPart(Part):
    type: Literal["text"]
    text: str


class FunctionCall(Part):
    name: str
    arguments: str = Field("", description="JSON text.")


class ToolCall(Part):
    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Part):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None


class Function(Part):
    name: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    type: Literal["function"]
    function: Function


class StreamOptions(Part):
    include_usage: bool = Field(False, description="End with a chunk that has the usage.")
    continuous_usage_stats: bool = Field(False, description="Have the usage in every chunk.")
    include_obfuscation: bool = Field(False, description="Ignored.")


class Body(BaseModel):
    """What both endpoints take. Other keys are sorted out in `parsing`."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    model: str | None = Field(None, description="Name of the served model; not given: that one.")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Answers to each prompt.")
    max_tokens: int | None = Field(None, ge=1, description="Longest answer, in tokens.")
    stream: bool = Field(False, description="Send the answer as events while it is made.")
    stream_options: StreamOptions | None = None
    return_token_ids: bool = Field(False, description="Add token ids of prompt and answer.")
    speculation: dict[str, Any] | Literal["off"] | None = Field(
        None,
        description="How the answer is drafted; changes its speed, never its text. Keys not given "
        'are the deployment\'s; "off" decodes plainly.',
    )


class ChatBody(Body):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, description="The same as max_tokens.")
    logprobs: bool = Field(False, description="Add the log-probability of each token.")
    top_logprobs: int | None = Field(
        None, ge=0, le=20, description="Add that many of the likeliest tokens in its place."
    )
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto"] | None = None


Ids: TypeAlias = list[int]


class CompletionBody(Body):
    """The body of POST /v1/completions."""

    prompt: (
        str
        | Annotated[Ids, Field(min_length=1)]
        | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[Annotated[Ids, Field(min_length=1)]], Field(max_length=MAX_PROMPTS)]
    )
    logprobs: int | None = Field(
        None, ge=0, le=20, description="Add log-probabilities, and that many alternatives."
    )
    echo: bool = Field(False, description="Begin the text with the prompt.")
