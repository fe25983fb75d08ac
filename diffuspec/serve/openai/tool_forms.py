"""Which calls an answer may or must have, as the form of the answer.

The grammars hold answers to the form that `tools` reads. Arguments are written as models learn
them: on one line, with a space after colons and commas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.serve.openai.bodies import ChatBody, Function, NamedTool
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.tools import CLOSE, OPEN
from diffuspec.text.grammars import json_schema_of

_MAX_CALLS = 16  # of one answer
_ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_HIDDEN: Any = {"cache_control": True, "function": {"strict", "cache_control"}}  # from the model
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that the model may call, and the form of its answer."""

    tools: tuple[Mapping[str, Any], ...] = ()
    is_named: bool = False  # the answer is one call of a function that the request names
    form: StructuredOutput | None = None  # of the answer; None: any text


def read_tools(body: ChatBody, form: StructuredOutput | None) -> ToolUse:
    """Return the tools of a body. `form`: that of answers without calls, if the body demands one.

    Raises BadRequestError.
    """
    choice = body.tool_choice or "auto"
    if not body.tools and choice not in ("auto", "none"):
        raise BadRequestError("tool_choice needs tools", "tool_choice")
    if not body.tools or choice == "none":
        return ToolUse(form=form)
    tools = tuple(tool.model_dump(exclude_none=True, exclude=_HIDDEN) for tool in body.tools)
    functions, is_single = _functions(body), not body.parallel_tool_calls
    if choice != "auto":
        if form is not None:
            raise BadRequestError(
                "tool_choice demands a call, which excludes any other form of the answer",
                "tool_choice",
            )
        is_named = isinstance(choice, NamedTool)
        grammar = _calls(functions, is_strict=True, is_single=is_named or is_single)
        return ToolUse(tools, is_named, _as_form(grammar))
    if form is None and not is_single and not any(one.strict for one in functions):
        return ToolUse(tools)
    return ToolUse(tools, form=_as_form(_calls_or_text(functions, form, is_single)))


def _functions(body: ChatBody) -> list[Function]:
    """Return the functions that an answer may call."""
    functions = [tool.function for tool in body.tools or ()]
    if len({function.name for function in functions}) < len(functions):
        raise BadRequestError("tools must have different names", "tools")
    if not isinstance(body.tool_choice, NamedTool):
        return functions
    name = body.tool_choice.function.name
    functions = [function for function in functions if function.name == name]
    if not functions:
        raise BadRequestError("tool_choice must name one of tools", "tool_choice")
    return functions


def _as_form(grammar: str) -> StructuredOutput:
    try:
        return StructuredOutput(grammar=grammar)
    except InvalidRequestError as error:
        reason = str(error).partition(", got ")[0]
        raise BadRequestError(f"tools are too many or too long: their {reason}", "tools") from None


def _calls(functions: Sequence[Function], *, is_strict: bool, is_single: bool) -> str:
    """Return a Lark grammar of calls and nothing else."""
    more = "" if is_single else f' ("\\n" call){{0,{_MAX_CALLS - 1}}}'
    return f"start: calls\ncalls: call{more}\ncall: {_text(OPEN)} {_call(functions, is_strict)}"


def _calls_or_text(
    functions: Sequence[Function], form: StructuredOutput | None, is_single: bool
) -> str:
    """Return a Lark grammar of an answer that may have calls.

    Arguments of strict functions keep to their schema; those of other functions are any object.
    """
    if form is not None:
        schema = _schema_of(form)
        rest = _calls(functions, is_strict=False, is_single=is_single).partition("\n")[2]
        return f"start: calls | other\nother: %json {schema}\n{rest}"
    start = "text | call" if is_single else f"call{{0,{_MAX_CALLS}}} text"
    return (
        f"start: {start}\ntext: TEXT\nTEXT: /(.|\\n)*/\n"
        f"begun[lazy]: TEXT {_text(OPEN)}\ncall: begun {_call(functions, is_strict=False)}"
    )


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


def _call(functions: Sequence[Function], is_strict: bool) -> str:
    """Return the rest of a rule, after the mark that opens a call, and the rules that it needs."""
    heads = " | ".join(
        f"{_text(_head(function))} arguments{place}" for place, function in enumerate(functions)
    )
    rules = [f"({heads}) {_text('}' + chr(10) + CLOSE)}"]
    for place, function in enumerate(functions):
        is_free = not (is_strict or function.strict)
        parameters = {} if is_free else (function.parameters or _NO_PARAMETERS)
        schema = {"type": "object", "x-guidance": _ON_ONE_LINE, **parameters}
        rules.append(f"arguments{place}: %json {json.dumps(schema)}")
    return "\n".join(rules)


def _head(function: Function) -> str:
    return f'\n{{"name": {json.dumps(function.name)}, "arguments": '


def _text(text: str) -> str:
    """Return a text as a terminal of Lark."""
    return json.dumps(text)
