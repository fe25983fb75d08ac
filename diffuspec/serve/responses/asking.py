"""Requests of /v1/responses, read as chats."""

from __future__ import annotations

from functools import partial
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.openai.asking import Asked
from diffuspec.serve.openai.body_parts import NO_TOOLS
from diffuspec.serve.openai.errors import BadRequestError, renamed
from diffuspec.serve.openai.jobs import Job
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.tokenization import encode_whole
from diffuspec.serve.openai.unread_keys import check_extensions
from diffuspec.serve.openai.validation import keys_of, validated
from diffuspec.serve.responses.bodies import AllowedFunctions, FunctionChoice, ResponsesBody
from diffuspec.serve.responses.items import messages_of
from diffuspec.serve.responses.objects import InputTokens
from diffuspec.serve.responses.reply import ResponsesReply
from diffuspec.serve.responses.tools import FlatTools, flattened

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
    tools = flattened(read.tools or ())
    job = _job(read, tools, model)
    return Asked(job, partial(ResponsesReply, read, tools.namespaces), names=_NAMES)


def count_input(body: object, tokenizer: Any, model: ServedModel) -> InputTokens:
    """Return the number of tokens of a body's prompt, of any length.

    Tokenising a long prompt takes time, so call it in a thread. Raises InvalidRequestError.
    """
    read = validated(ResponsesBody, keys_of(body))
    job = _job(read, flattened(read.tools or ()), model)
    num_tokens = len(encode_whole(job, tokenizer, model))
    return {"object": "response.input_tokens", "input_tokens": num_tokens}


def _job(body: ResponsesBody, tools: FlatTools, model: ServedModel) -> Job:
    is_strict = model.conventions.is_strict
    if tools.left_out and is_strict:
        raise BadRequestError(f"tools must be functions: {NO_TOOLS}", "tools")
    extensions, ignored = check_extensions(
        body.model_extra or {}, ResponsesBody.model_fields, _NAMES, is_strict=is_strict
    )
    try:
        job = parse("/v1/chat/completions", _chat(body, tools) | extensions, model)
    except InvalidRequestError as error:
        raise renamed(error, _NAMES) from error
    return job.ignoring(tools.left_out + ignored, _NAMES)


def _chat(body: ResponsesBody, tools: FlatTools) -> dict[str, Any]:
    """Return the equivalent chat body; None is the same as not given."""
    has_logprobs = _LOGPROBS in (body.include or ())
    if body.top_logprobs and not has_logprobs:
        raise BadRequestError(f"top_logprobs needs include: [{_LOGPROBS!r}]", "top_logprobs")
    return {
        "messages": messages_of(body.input, body.instructions),
        "max_tokens": body.max_output_tokens,
        "tools": None if body.tools is None else list(tools.functions),
        "tool_choice": _tool_choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _form(body),
        "verbosity": None if body.text is None else body.text.verbosity,
        "reasoning_effort": None if body.reasoning is None else body.reasoning.effort,
        "logprobs": has_logprobs,
        "top_logprobs": body.top_logprobs,
        "stream": body.stream,
    }


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
