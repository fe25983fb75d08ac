"""The objects of responses of /v1/responses, whole and as events."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict  # pydantic rejects typing's before Python 3.12

from diffuspec.serve.openai.objects import ChosenTokenLogprob, ErrorCode
from diffuspec.serve.openai.speculation_objects import SpeculationUsage

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChosenTokenLogprob]


class OutputMessage(TypedDict):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(TypedDict):
    type: Literal["function_call"]
    id: str
    status: Status
    call_id: str
    name: str
    namespace: NotRequired[
        Annotated[str, Field(description="The group of the function, if the request has one.")]
    ]
    arguments: Annotated[str, Field(description="JSON text.")]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(TypedDict):
    type: Literal["reasoning"]
    id: str
    status: Status
    summary: list[Any]
    content: list[ReasoningText]
    encrypted_content: None


OutputItem: TypeAlias = OutputMessage | OutputCall | OutputReasoning
OutputPart: TypeAlias = OutputText | ReasoningText


class InputTokenDetails(TypedDict):
    cached_tokens: Annotated[
        int,
        Field(
            description="Prompt tokens found in the target's cache; of requests with an API key or "
            "a cache_salt, in whole blocks of 64."
        ),
    ]
    cache_write_tokens: Annotated[
        int, Field(description="Prompt tokens computed and added to the cache.")
    ]


class OutputTokenDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int
    speculation: SpeculationUsage


class ResponseError(TypedDict):
    code: ErrorCode | None
    message: str


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class ResponseText(TypedDict):
    format: dict[str, Any]
    verbosity: NotRequired[str]


class ResponseReasoning(TypedDict):
    effort: str | None
    summary: None


class RepeatedParameters(TypedDict):
    """Parameters of the request that the response repeats."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    top_logprobs: int
    text: ResponseText
    reasoning: ResponseReasoning
    tools: list[dict[str, Any]]
    tool_choice: Any
    truncation: Literal["disabled"]
    previous_response_id: None
    background: Literal[False]
    store: Literal[False]
    service_tier: Literal["default"]


class ResponseObject(RepeatedParameters):
    """A response, whole or so far."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None


class ResponseEvent(TypedDict):
    """The first or last event of a stream."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: ResponseObject


class PlacedEvent(TypedDict):
    """An event of an item."""

    sequence_number: int
    output_index: int
    item_id: str


class ContentEvent(PlacedEvent):
    """An event of an item's only part."""

    content_index: Literal[0]


class ItemEvent(TypedDict):
    type: Literal["response.output_item.added", "response.output_item.done"]
    sequence_number: int
    output_index: int
    item: OutputItem


class PartEvent(ContentEvent):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputPart


class TextDeltaEvent(ContentEvent):
    type: Literal["response.output_text.delta", "response.reasoning_text.delta"]
    delta: str
    logprobs: NotRequired[list[ChosenTokenLogprob]]


class TextDoneEvent(ContentEvent):
    type: Literal["response.output_text.done", "response.reasoning_text.done"]
    text: str
    logprobs: NotRequired[list[ChosenTokenLogprob]]


class ArgumentsDeltaEvent(PlacedEvent):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(PlacedEvent):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class InputTokens(TypedDict):
    """The answer of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class ErrorEvent(TypedDict):
    """Comes before response.failed."""

    type: Literal["error"]
    sequence_number: int
    code: ErrorCode | None
    message: str
    param: str | None


EVENTS: tuple[Any, ...] = (
    ResponseEvent,
    ItemEvent,
    PartEvent,
    TextDeltaEvent,
    TextDoneEvent,
    ArgumentsDeltaEvent,
    ArgumentsDoneEvent,
    ErrorEvent,
)
