"""Requests of /v1/responses, read as chats."""

from __future__ import annotations

from functools import partial
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.openai.asking import Asked
from diffuspec.serve.openai.errors import BadRequestError, renamed
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.unsupported import check_extensions
from diffuspec.serve.openai.validation import keys_of, validated
from diffuspec.serve.responses.bodies import AllowedFunctions, FunctionChoice, ResponsesBody
from diffuspec.serve.responses.items import messages_of
from diffuspec.serve.responses.reply import ResponsesReply

# Keys of a chat, by their names in this API.
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
_LOGPROBS = "message.output_text.logprobs"


def ask_response(body: object, model: ServedModel) -> Asked:
    """Check the body of /v1/responses. Raises BadRequestError."""
    read = validated(ResponsesBody, keys_of(body))
    extensions = check_extensions(read.model_extra or {}, ResponsesBody.model_fields)
    try:
        job = parse("/v1/chat/completions", _chat(read) | extensions, model)
    except InvalidRequestError as error:
        raise renamed(error, _NAMES) from error
    return Asked(job, partial(ResponsesReply, read), names=_NAMES)


def _chat(body: ResponsesBody) -> dict[str, Any]:
    """Return the equivalent chat body; None is the same as not given."""
    has_logprobs = _LOGPROBS in (body.include or ())
    if body.top_logprobs and not has_logprobs:
        raise BadRequestError(f"top_logprobs needs include: [{_LOGPROBS!r}]", "top_logprobs")
    return {
        "messages": messages_of(body.input, body.instructions),
        "max_tokens": body.max_output_tokens,
        "tools": _tools(body),
        "tool_choice": _tool_choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _form(body),
        "verbosity": None if body.text is None else body.text.verbosity,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "logprobs": has_logprobs,
        "top_logprobs": body.top_logprobs,
        "stream": body.stream,
    }


def _tools(body: ResponsesBody) -> list[dict[str, Any]] | None:
    if body.tools is None:
        return None
    return [
        {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}
        for tool in body.tools
    ]


def _tool_choice(body: ResponsesBody) -> Any:
    choice = body.tool_choice
    if isinstance(choice, FunctionChoice):
        return _named(choice)
    if isinstance(choice, AllowedFunctions):
        allowed = {"mode": choice.mode, "tools": [_named(one) for one in choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return choice


def _named(choice: FunctionChoice) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice.name}}


def _form(body: ResponsesBody) -> dict[str, Any] | None:
    """Return the format of the answer as in a chat, where the schema is one level deeper."""
    given = None if body.text is None else body.text.format
    if given is None or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {k: v for k, v in given.items() if k != "type"}}
