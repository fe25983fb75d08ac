"""The body of POST /v1/responses, besides sampling parameters, which are those of a chat."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, WithJsonSchema

from diffuspec.core.params import MAX_LOGPROBS
from diffuspec.serve.openai.bodies import MAX_MESSAGES, Effort, Verbosity
from diffuspec.serve.openai.body_parts import (
    MAX_TOOLS,
    NO_TOOLS,
    NULL_SCHEMA,
    ChoiceWord,
    Part,
    kind_of_choice,
    only,
)
from diffuspec.serve.responses.items import InputItem
from diffuspec.serve.responses.tools import ResponsesTool

MAX_LABELS = 16
_Label: TypeAlias = Annotated[str, Field(max_length=512)]

Includable: TypeAlias = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]


FunctionType: TypeAlias = Annotated[
    Any,
    only("function", NO_TOOLS),
    WithJsonSchema({"const": "function"}),
]


class FunctionChoice(Part):
    """The function that the answer must call."""

    type: FunctionType
    name: str


class AllowedFunctions(Part):
    """The only functions that the answer may call; the model sees all of them."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[FunctionChoice] = Field(min_length=1, max_length=MAX_TOOLS)


ResponsesToolChoice: TypeAlias = Annotated[
    ChoiceWord
    | Annotated[FunctionChoice, Tag("Named")]
    | Annotated[AllowedFunctions, Tag("Allowed")],
    Discriminator(kind_of_choice),
]


class TextOptions(Part):
    """The format of the answer's text."""

    format: dict[str, Any] | None = Field(
        None, description="text, json_object, or json_schema with a `schema`."
    )
    verbosity: Verbosity | None = Field(
        None, description="For chat templates that have this variable."
    )


class ReasoningOptions(Part):
    """How much to think."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Ignored: the answer contains the reasoning itself."
    )
    context: str | None = Field(None, description="Ignored: the chat template decides.")
    mode: str | None = Field(None, description="Ignored: the model has one mode.")
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Ignored, like `summary`."
    )


class ResponseStreamOptions(Part):
    include_obfuscation: bool = Field(False, description="Ignored.")


_NOTHING_STORED = "this service stores no answers"
_FALSE = WithJsonSchema({"const": False, "description": f"No other: {_NOTHING_STORED}."})
NotStored: TypeAlias = Annotated[Any, only(False, _NOTHING_STORED), _FALSE]
Stateless: TypeAlias = Annotated[
    Any, only(None, f"{_NOTHING_STORED}, so send the whole conversation as input"), NULL_SCHEMA
]
NoPrompt: TypeAlias = Annotated[Any, only(None, "this service stores no prompts"), NULL_SCHEMA]
Untruncated: TypeAlias = Annotated[
    Any,
    only("disabled", "no items are dropped; truncate_prompt_tokens cuts prompts"),
    WithJsonSchema({"const": "disabled"}),
]


class ResponsesBody(BaseModel):
    """The body of POST /v1/responses."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    model: str | None = Field(None, description="Name of the served model. May be omitted.")
    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = Field(None, description="A system message that precedes the input.")
    max_output_tokens: int | None = Field(
        None, ge=1, description="Maximum length of the answer, including its reasoning, in tokens."
    )
    tools: list[ResponsesTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ResponsesToolChoice | None = Field(
        None, description="Which calls the answer may or must have."
    )
    parallel_tool_calls: bool = Field(True, description="Allow several calls in an answer.")
    max_tool_calls: int | None = Field(
        None, description="Ignored: it applies only to built-in tools."
    )
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Includable] | None = Field(
        None,
        description="message.output_text.logprobs adds log-probabilities; other values have no "
        "effect.",
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Number of most likely tokens to add at each position.",
    )
    stream: bool = Field(False, description="Send the answer as events while it is generated.")
    stream_options: ResponseStreamOptions | None = None
    metadata: Annotated[dict[str, _Label], Field(max_length=MAX_LABELS)] | None = Field(
        None, description="Returned with the answer."
    )
    store: NotStored = None
    previous_response_id: Stateless = None
    conversation: Stateless = None
    prompt: NoPrompt = None
    background: NotStored = None
    truncation: Untruncated = None
