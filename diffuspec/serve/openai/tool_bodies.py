"""Functions of a body that an answer may call, and the choice among them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from diffuspec.serve.openai.body_parts import CacheControl, Part


class Function(Part):
    name: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")]
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
