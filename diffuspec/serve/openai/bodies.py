"""The bodies of requests: OpenAI's keys, besides the parameters in core/params.

Every parameter of `SamplingParams` is also a key of both bodies, under its own name, and is checked
by its declaration; see `parsing`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from diffuspec.core.params import MAX_CHOICES, MAX_LOGPROBS
from diffuspec.serve.openai.body_parts import (
    MAX_PARTS,
    MAX_TOOLS,
    Part,
    TextPart,
    Thinking,
    Tool,
    ToolChoice,
)
from diffuspec.serve.openai.message_bodies import Message
from diffuspec.serve.openai.validation import check_request_id

MAX_MESSAGES = 4096
MAX_PROMPTS = 64
_MAX_OPTION_CHARACTERS = 256


def _check_option(given: object) -> object:
    if isinstance(given, bool | int | float | None):
        return given
    if isinstance(given, str) and len(given) <= _MAX_OPTION_CHARACTERS:
        return given
    raise ValueError(f"must be true, false, a number or at most {_MAX_OPTION_CHARACTERS} letters")


_OPTION_SCHEMA: dict[str, Any] = {"type": ["boolean", "number", "string", "null"]}
TemplateOption: TypeAlias = Annotated[
    Any, PlainValidator(_check_option), WithJsonSchema(_OPTION_SCHEMA)
]


Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity: TypeAlias = Literal["low", "medium", "high"]


class StreamOptions(Part):
    include_usage: bool = Field(False, description="End with a chunk that contains the usage.")
    continuous_usage_stats: bool = Field(False, description="Include the usage in every chunk.")
    include_obfuscation: bool = Field(False, description="Ignored.")


class Prediction(Part):
    """A text of which the answer may repeat large parts."""

    type: Literal["content"]
    content: str | Annotated[list[TextPart], Field(max_length=MAX_PARTS)]


class Body(BaseModel):
    """The keys of both endpoints. `parsing` checks the other keys."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    model: str | None = Field(None, description="Name of the served model. May be omitted.")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="Number of answers to each prompt.")
    max_tokens: int | None = Field(
        None, ge=1, description="Maximum length of an answer, in tokens."
    )
    stream: bool = Field(False, description="Send the answer as events while it is generated.")
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: int | None = Field(
        None,
        ge=-1,
        description="Truncate a longer prompt to this number of tokens; -1: to what fits into the "
        "context together with the answer.",
    )
    truncation_side: Literal["left", "right"] = Field(
        "left", description="The side at which truncate_prompt_tokens removes tokens."
    )
    return_token_ids: bool = Field(False, description="Add the token ids of prompt and answer.")
    return_tokens_as_token_ids: bool = Field(
        False, description="Represent tokens in logprobs by their ids, as in token_id:123."
    )
    spaces_between_special_tokens: bool = Field(
        True, description="Must be true with skip_special_tokens: false."
    )
    request_id: Annotated[str, AfterValidator(check_request_id)] | None = Field(
        None, description="Overrides the header x-request-id, which gateways may set."
    )
    speculation: dict[str, Any] | Literal["off"] | None = Field(
        None,
        description="How the answer is drafted; changes its speed, never its text. Omitted keys "
        'have the values of the deployment; "off": plain decoding.',
    )
    prediction: Prediction | None = Field(
        None,
        description="A text much of which the answer is expected to repeat, such as a text to be "
        "edited. It is used for drafting, which changes only the speed.",
    )


class ChatBody(Body):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, description="The same as max_tokens.")
    logprobs: bool = Field(False, description="Add the log-probability of each token.")
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Number of most likely tokens to add at each position.",
    )
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = Field(
        None,
        description="`required` demands calls, an object demands a call of the function that it "
        "names; the arguments fit the function's schema. allowed_tools: only these may "
        "be called.",
    )
    chat_template_kwargs: Annotated[dict[str, TemplateOption], Field(max_length=16)] | None = Field(
        None, description="Variables of the model's chat template, such as enable_thinking."
    )
    add_special_tokens: bool = Field(
        False,
        description="Add special tokens such as BOS to the output of the chat template.",
    )
    add_generation_prompt: bool = Field(
        True,
        description="Whether the chat template begins a new message for the answer; otherwise the "
        "answer has the role of the final message.",
    )
    continue_final_message: bool = Field(
        False,
        description="Whether the answer continues the final message, which is left open; needs "
        "add_generation_prompt: false.",
    )
    reasoning_effort: Effort | None = Field(
        None,
        description="How much to think, for chat templates that have this variable or "
        "enable_thinking; ignored by others. max is xhigh.",
    )
    thinking: Thinking | None = Field(None, description="Whether to reason, as in Anthropic's API.")
    verbosity: Verbosity | None = Field(
        None,
        description="How long the answer should be, for chat templates that have this "
        "variable; ignored by others.",
    )
    include_reasoning: bool = Field(True, description="Include the reasoning in the answer.")
    parallel_tool_calls: bool = Field(True, description="Allow several calls in an answer.")


def _check_prompt(given: object) -> object:
    """Return a prompt unchanged. pydantic would list every invalid item for four kinds of lists."""
    if isinstance(given, str) or _are_ids(given):
        return given
    if not isinstance(given, list) or not given:
        raise ValueError("must be a text, a list of token ids, or a list of such prompts")
    if len(given) > MAX_PROMPTS:
        raise ValueError(f"must be at most {MAX_PROMPTS} prompts")
    if not (all(isinstance(one, str) for one in given) or all(map(_are_ids, given))):
        raise ValueError("must be texts only, or token ids only")
    return given


def _are_ids(given: object) -> bool:
    return isinstance(given, list) and bool(given) and all(type(one) is int for one in given)


_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_SEVERAL: dict[str, Any] = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}
_PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        _IDS,
        _SEVERAL | {"items": {"type": "string", "minLength": 1}},
        _SEVERAL | {"items": _IDS},
    ],
    "description": "A text or token ids, or several of either.",
}
Prompts: TypeAlias = Annotated[Any, PlainValidator(_check_prompt), WithJsonSchema(_PROMPT_SCHEMA)]


class CompletionBody(Body):
    """The body of POST /v1/completions."""

    prompt: Prompts
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Add log-probabilities, with this many alternatives per token.",
    )
    add_special_tokens: bool = Field(
        True,
        description="Add the tokenizer's special tokens, such as BOS, to a prompt that is text.",
    )
    echo: bool = Field(
        False,
        description="Repeat the prompt at the beginning of the text, and its tokens at the "
        "beginning of logprobs.",
    )
    max_tokens: int | None = Field(
        None,
        ge=0,
        description="Maximum length of an answer, in tokens; 0 with echo: only the prompt.",
    )
