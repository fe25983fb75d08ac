"""The tools of /v1/responses: functions, alone or in namespaces; others are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from diffuspec.serve.openai.body_parts import (
    MAX_TOOLS,
    DescribedPart,
    FunctionNamePattern,
    OpenPart,
)
from diffuspec.serve.openai.near_keys import near_key
from diffuspec.serve.openai.unread_keys import shown

_BETWEEN = "__"  # between a namespace and a function, as Codex and vLLM write it


class FunctionTool(DescribedPart):
    """A function that the answer may call."""

    type: Literal["function"]
    name: FunctionNamePattern
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = Field(False, description="Whether arguments must fit the schema.")


class OtherTool(OpenPart):
    """A tool of OpenAI's service, or a custom one: left out, and named in the answer's header."""

    type: str = Field(max_length=64)


def _inner_kind_of(given: object) -> str:
    kind = given.get("type") if isinstance(given, dict) else None
    is_function = not isinstance(kind, str) or near_key(kind, ("function",)) is not None
    return "FunctionTool" if is_function else "OtherTool"


InnerTool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("FunctionTool")] | Annotated[OtherTool, Tag("OtherTool")],
    Discriminator(_inner_kind_of),
]


class NamespaceTool(DescribedPart):
    """Functions of a group; a call has the `namespace` beside its `name`."""

    type: Literal["namespace"]
    name: FunctionNamePattern
    description: str | None = None
    tools: list[InnerTool] = Field(max_length=MAX_TOOLS)


def _kind_of(given: object) -> str:
    is_group = isinstance(given, dict) and given.get("type") == "namespace"
    return "NamespaceTool" if is_group else _inner_kind_of(given)


ResponsesTool: TypeAlias = Annotated[
    Annotated[FunctionTool, Tag("FunctionTool")]
    | Annotated[NamespaceTool, Tag("NamespaceTool")]
    | Annotated[OtherTool, Tag("OtherTool")],
    Discriminator(_kind_of),
]


@dataclass(frozen=True, slots=True)
class FlatTools:
    """The functions of a request, in the form that chats have."""

    functions: tuple[dict[str, Any], ...] = ()
    namespaces: Mapping[str, tuple[str, str]] = field(
        default_factory=dict
    )  # namespace and name, by the flat name
    left_out: tuple[str, ...] = ()  # types of tools, as keys that are ignored


def flattened(tools: Iterable[ResponsesTool]) -> FlatTools:
    """Return tools without their namespaces, which become part of names."""
    functions: list[dict[str, Any]] = []
    namespaces: dict[str, tuple[str, str]] = {}
    left_out: dict[str, None] = {}
    for tool in tools:
        namespace = tool.name if isinstance(tool, NamespaceTool) else None
        for member in tool.tools if isinstance(tool, NamespaceTool) else [tool]:
            if isinstance(member, OtherTool):
                left_out[f"tools.{shown(member.type)}"] = None
                continue
            name = flat_name(member.name, namespace)
            functions.append(_described(member, name))
            if namespace is not None:
                namespaces[name] = (namespace, member.name)
    return FlatTools(tuple(functions), namespaces, tuple(left_out))


def flat_name(name: str, namespace: str | None) -> str:
    """Return the name of a function of a namespace as the model knows it."""
    return name if namespace is None else f"{namespace}{_BETWEEN}{name}"


def _described(tool: FunctionTool, name: str) -> dict[str, Any]:
    function = tool.model_dump(exclude={"type", "name"}, exclude_none=True)
    return {"type": "function", "function": {"name": name, **function}}
