"""Functions of a body that an answer may call, and the choice among them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from diffuspec.serve.openai.body_parts import MAX_TOOLS, CacheControl, Part

FunctionNamePattern: TypeAlias = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")]


class Function(Part):
    name: FunctionNamePattern
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: CacheControl = None


class Tool(Part):
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
    """Some of the tools, which alone may be called; the model is told of all."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


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
