"""The objects of answers, which replies return and the OpenAPI document describes.

mypy checks the replies; the document is derived from the types, in `schema`. Nothing is checked
while requests are answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict  # pydantic rejects typing's before Python 3.12

from diffuspec.serve.openai.body_parts import Role
from diffuspec.serve.openai.speculation_objects import SpeculationUsage, StepReport

ErrorType: TypeAlias = Literal[
    "authentication_error", "invalid_request_error", "rate_limit_error", "server_error"
]
ErrorCode: TypeAlias = Literal[
    "body_timeout",
    "body_too_large",
    "cancelled",
    "context_length_exceeded",
    "headers_too_large",
    "host_not_allowed",
    "internal_error",
    "invalid_api_key",
    "method_not_allowed",
    "model_not_found",
    "not_found",
    "not_ready",
    "overloaded",
    "rate_limit_exceeded",
    "several_hosts",
    "timeout",
    "unavailable",
    "unknown_parameter",
    "unsupported_content_encoding",
    "unsupported_media_type",
    "unsupported_parameter",
    "unsupported_transfer_encoding",
    "worker_failed",
    "fatal_request",
]


class ErrorDetails(TypedDict):
    message: str
    type: ErrorType
    param: Annotated[str | None, Field(description="The invalid parameter.")]
    code: ErrorCode | None


class Error(TypedDict):
    """An error, also as the last event of a failed stream."""

    error: ErrorDetails


class PromptTokenDetails(TypedDict):
    cached_tokens: Annotated[
        int,
        Field(
            description="Prompt tokens found in the target's cache; of requests with an API key or "
            "a cache_salt, in whole blocks of 64."
        ),
    ]
    audio_tokens: Literal[0]


class CompletionTokenDetails(TypedDict):
    accepted_prediction_tokens: Annotated[
        int, Field(description="Accepted draft tokens, if the request has a prediction; else 0.")
    ]
    rejected_prediction_tokens: Annotated[
        int, Field(description="Rejected draft tokens, if the request has a prediction; else 0.")
    ]
    reasoning_tokens: int
    audio_tokens: Literal[0]


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokenDetails
    completion_tokens_details: CompletionTokenDetails
    speculation: SpeculationUsage


class PromptLogprob(TypedDict):
    logprob: float
    rank: Annotated[
        int | None, Field(description="1 for the most likely token, 2 for the next, and so on.")
    ]
    decoded_token: str


PromptLogprobs: TypeAlias = Annotated[
    list[dict[str, PromptLogprob] | None],
    Field(
        description="For each token of the prompt, log-probabilities by token id; null for the "
        "first."
    ),
]
TokenIds: TypeAlias = Annotated[Sequence[int], Field(description="Only with return_token_ids.")]
StopReason: TypeAlias = Annotated[
    str | int | None, Field(description="The stop string or token id that ended the answer.")
]


class TokenLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChosenTokenLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChosenTokenLogprob]
    refusal: None


class CalledFunction(TypedDict):
    name: str
    arguments: Annotated[str, Field(description="JSON text.")]


class ToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class CalledFunctionPart(TypedDict):
    name: NotRequired[str]
    arguments: str


class ToolCallPart(TypedDict):
    """The beginning of a call, with its id and name, or more of its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunctionPart


AnswerRole: TypeAlias = Annotated[
    Role, Field(description="Other than assistant only if the answer continues a message.")
]
Reasoning: TypeAlias = Annotated[str, Field(description="The reasoning before the answer.")]
SameReasoning: TypeAlias = Annotated[str, Field(description="The same, under its newer name.")]
ChatFinishReason: TypeAlias = Literal["stop", "length", "tool_calls"]


class ChatMessage(TypedDict):
    role: AnswerRole
    content: str | None
    refusal: None
    reasoning_content: NotRequired[Reasoning]
    reasoning: NotRequired[SameReasoning]
    tool_calls: NotRequired[list[ToolCall]]


class ChatChoice(TypedDict):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: StopReason
    token_ids: NotRequired[TokenIds]


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: NotRequired[TokenIds]
    prompt_logprobs: NotRequired[PromptLogprobs]


class ChatDelta(TypedDict):
    role: NotRequired[AnswerRole]
    content: NotRequired[str]
    reasoning_content: NotRequired[Reasoning]
    reasoning: NotRequired[SameReasoning]
    tool_calls: NotRequired[list[ToolCallPart]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: StopReason
    token_ids: NotRequired[TokenIds]


class ChatCompletionChunk(TypedDict):
    """The data of an event. With include_usage, the last one before [DONE] has no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]
    prompt_token_ids: NotRequired[TokenIds]
    speculation: NotRequired[StepReport]


class TextLogprobs(TypedDict):
    """Log-probabilities of the tokens of a text; null for the first token of a prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(TypedDict):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Annotated[
        Literal["stop", "length"] | None, Field(description="null in all chunks but the last.")
    ]
    stop_reason: StopReason
    token_ids: NotRequired[TokenIds]
    prompt_token_ids: NotRequired[TokenIds]
    prompt_logprobs: NotRequired[PromptLogprobs]


class Completion(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class CompletionChunk(TypedDict):
    """The data of an event. With include_usage, the last one before [DONE] has no choices."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: NotRequired[Usage | None]
    speculation: NotRequired[StepReport]


class Model(TypedDict):
    """A model, as clients of OpenAI's and of Anthropic's API read it."""

    id: str
    object: Literal["model"]
    type: Literal["model"]
    display_name: str
    created_at: Annotated[str, Field(description="The same time as `created`, in ISO 8601.")]
    created: int
    owned_by: Literal["diffuspec"]
    max_model_len: Annotated[
        int, Field(description="Maximum number of tokens of prompt and answer together.")
    ]


class ModelList(TypedDict):
    object: Literal["list"]
    has_more: Literal[False]
    first_id: str
    last_id: str
    data: list[Model]


class TokenizedPrompt(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: Annotated[list[str] | None, Field(description="Only with return_token_strs.")]


class AddedToken(TypedDict):
    content: str
    special: bool


class TokenizerInfo(TypedDict):
    """The tokenizer, in the words of a tokenizer_config.json."""

    tokenizer_class: str
    chat_template: str
    model_max_length: int
    bos_token: NotRequired[str]
    eos_token: NotRequired[str]
    unk_token: NotRequired[str]
    sep_token: NotRequired[str]
    pad_token: NotRequired[str]
    cls_token: NotRequired[str]
    mask_token: NotRequired[str]
    added_tokens_decoder: dict[str, AddedToken]


class DetokenizedText(TypedDict):
    prompt: str
