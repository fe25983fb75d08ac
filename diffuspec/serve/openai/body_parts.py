"""The parts of bodies: objects that are checked, and the parts of a text."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
    model_validator,
)

from diffuspec.serve.openai.near_keys import near_key

MAX_PARTS = 256
MAX_TOOLS = 1024

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]


class Part(BaseModel):
    """An object in a body. Null is the same as not given; unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None}


class DescribedPart(Part):
    """A tool's description: unknown keys are ignored unless they are misspelled ones."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_misspelled(cls, given: object) -> object:
        for key in given if isinstance(given, dict) else ():
            if key not in cls.model_fields and (meant := near_key(str(key), cls.model_fields)):
                raise ValueError(f"must not have a key like {meant!r} that is spelled otherwise")
        return given


class OpenPart(Part):
    """A part of a conversation, in which unknown keys of clients, such as an id, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


NO_TOOLS = "this service runs no tools of its own"
NULL_SCHEMA = WithJsonSchema({"type": "null"})
Ignored: TypeAlias = Annotated[Any, Field(description="Ignored.")]
CacheControl: TypeAlias = Annotated[
    dict[str, Any] | None,
    Field(description="Ignored: prompts with a common prefix share the cache automatically."),
]


def only(value: object, reason: str) -> PlainValidator:
    """Refuse a key with any value other than this one; None: refuse every value."""
    right = "left out" if value is None else json.dumps(value)

    def check(given: object) -> object:
        if given != value:
            raise ValueError(f"must be {right}: {reason}")
        return given

    return PlainValidator(check)


class TextPart(OpenPart):
    type: Literal["text"]
    text: str
    cache_control: CacheControl = None


class RefusalPart(OpenPart):
    type: Literal["refusal"]
    refusal: str
    cache_control: CacheControl = None


def _kind_of_part(given: object) -> str:
    is_refusal = isinstance(given, dict) and given.get("type") == "refusal"
    return "RefusalPart" if is_refusal else "TextPart"


MessagePart: TypeAlias = Annotated[
    Annotated[TextPart, Tag("TextPart")] | Annotated[RefusalPart, Tag("RefusalPart")],
    Discriminator(_kind_of_part),
]


FunctionNamePattern: TypeAlias = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,256}$")]


class Function(DescribedPart):
    name: FunctionNamePattern
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl = None


class Tool(DescribedPart):
    type: Literal["function"]
    function: Function
    cache_control: CacheControl = None


class FunctionName(Part):
    name: str


class NamedTool(Part):
    type: Literal["function"]
    function: FunctionName


class AllowedTools(Part):
    mode: Literal["auto", "required"]
    tools: list[NamedTool] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedChoice(Part):
    """The only tools that may be called; the model sees all of them."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class Thinking(OpenPart):
    """Whether to reason, for chat templates with enable_thinking; adaptive: their default."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(
        None, ge=1, description="Not enforced: max_tokens limits reasoning and answer together."
    )
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted` omits the reasoning; it is never summarised."
    )


def kind_of_choice(given: object) -> str:
    """Return the tag of a tool_choice: str, Named or Allowed."""
    if not isinstance(given, dict):
        return "str"
    return "Allowed" if given.get("type") == "allowed_tools" else "Named"


ChoiceWord: TypeAlias = Annotated[Literal["none", "auto", "required"], Tag("str")]
ToolChoice: TypeAlias = Annotated[
    ChoiceWord | Annotated[NamedTool, Tag("Named")] | Annotated[AllowedChoice, Tag("Allowed")],
    Discriminator(kind_of_choice),
]
