"""The calls that an answer may or must contain, expressed as a format of the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import MAX_GRAMMAR_CHARACTERS, StructuredOutput
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.bodies import ChatBody
from diffuspec.serve.openai.body_parts import AllowedChoice, Function, NamedTool
from diffuspec.serve.openai.call_grammars import Calls, demanded, possible
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.forms import as_form
from diffuspec.text.grammars import json_schema_of
from diffuspec.text.schemas.in_lark import json_rule

# Keys of tools that are not shown to the model.
_HIDDEN: Any = {"cache_control": True, "function": {"strict", "cache_control"}}


_MAX_SCHEMAS = MAX_GRAMMAR_CHARACTERS
_TOO_LONG = "tools are too many or too long: their"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that the model may call, and the format of its answer."""

    tools: tuple[Mapping[str, Any], ...] = ()
    is_named: bool = False  # the answer is one call of a function named by the request
    form: StructuredOutput | None = None  # format of the answer; None: any text
    has_messages: bool = False  # the format covers all of gpt-oss's messages, in its channels


def read_tools(body: ChatBody, form: StructuredOutput | None, conventions: Conventions) -> ToolUse:
    """Return the tools of a body. `form`: required format of answers without calls, if any.

    Raises BadRequestError.
    """
    choice = body.tool_choice or "auto"
    if not body.tools and choice not in ("auto", "none"):
        raise BadRequestError("tool_choice needs tools", "tool_choice")
    if not body.tools or choice == "none":
        return ToolUse(form=form)
    tools = tuple(tool.model_dump(exclude_none=True, exclude=_HIDDEN) for tool in body.tools)
    mode = choice.allowed_tools.mode if isinstance(choice, AllowedChoice) else choice
    if mode != "auto":
        return _demanded(body, tools, conventions)
    functions, is_single = _functions(body), not body.parallel_tool_calls
    is_free = form is None and not is_single and not any(one.strict for one in functions)
    parser = conventions.tools
    if (is_free and len(functions) == len(tools)) or parser == "none":
        return ToolUse(tools, form=form)
    calls = _calls(functions, conventions, is_strict=False, is_single=is_single)
    other = None if form is None else json_rule("other", _schema_of(form), "response_format")
    grammar = _write(lambda: possible(parser, calls, other))
    return ToolUse(tools, False, as_form(grammar, _TOO_LONG, "tools"), parser == "openai")


def _demanded(
    body: ChatBody,
    tools: tuple[Mapping[str, Any], ...],
    conventions: Conventions,
) -> ToolUse:
    """Return the tools of a body that demands calls. Raises BadRequestError.

    A form of the answer binds its text, of which there is none.
    """
    parser, is_named = conventions.tools, isinstance(body.tool_choice, NamedTool)
    if parser == "none":
        raise BadRequestError(
            "tool_choice demands a call, of which this service knows no form", "tool_choice"
        )
    is_single = is_named or not body.parallel_tool_calls
    calls = _calls(_functions(body), conventions, is_strict=True, is_single=is_single)
    grammar = _write(lambda: demanded(parser, calls))
    return ToolUse(tools, is_named, as_form(grammar, _TOO_LONG, "tools"), parser == "openai")


def _calls(
    functions: Sequence[Function], conventions: Conventions, *, is_strict: bool, is_single: bool
) -> Calls:
    schemas = [function.parameters for function in functions if is_strict or function.strict]
    if len(_write(lambda: json.dumps(schemas))) > _MAX_SCHEMAS:
        raise BadRequestError(
            f"{_TOO_LONG} schemas must have at most {_MAX_SCHEMAS} characters together", "tools"
        )
    return Calls(functions, is_strict, is_single, conventions.special_ids, conventions.template)


def _functions(body: ChatBody) -> list[Function]:
    """Return the functions that an answer may call."""
    functions = [tool.function for tool in body.tools or ()]
    if len({function.name for function in functions}) < len(functions):
        raise BadRequestError("tools must have different names", "tools")
    choice = body.tool_choice
    if isinstance(choice, NamedTool):
        names = {choice.function.name}
    elif isinstance(choice, AllowedChoice):
        names = {one.function.name for one in choice.allowed_tools.tools}
    else:
        return functions
    if not names <= {function.name for function in functions}:
        raise BadRequestError(
            "tool_choice must name only functions that tools lists", "tool_choice"
        )
    return [function for function in functions if function.name in names]


def _write(write: Callable[[], str]) -> str:
    """Return a text made of schemas. Raises BadRequestError if one cannot be enforced."""
    try:
        return write()
    except InvalidRequestError as error:
        raise BadRequestError(str(error), "tools") from None
    except RecursionError:
        raise BadRequestError("tools have schemas that are nested too deeply", "tools") from None


def _schema_of(form: StructuredOutput) -> str:
    try:
        schema = json_schema_of(form)
    except InvalidRequestError as error:
        raise BadRequestError(str(error), "response_format") from None
    if schema is None:
        raise BadRequestError(
            "tools can only be combined with forms in JSON, unless tool_choice is none", "tools"
        )
    return schema
