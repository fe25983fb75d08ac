"""Requests of /v1/messages, read as chats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.messages.blocks import messages_of
from diffuspec.serve.messages.bodies import (
    AnthropicTool,
    CountBody,
    JsonFormat,
    MessagesBody,
    ServerTool,
)
from diffuspec.serve.messages.objects import TokenCount
from diffuspec.serve.messages.reply import MessagesReply
from diffuspec.serve.openai.asking import Asked
from diffuspec.serve.openai.body_parts import NO_TOOLS
from diffuspec.serve.openai.errors import BadRequestError, renamed
from diffuspec.serve.openai.jobs import Job
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.tokenization import encode_whole
from diffuspec.serve.openai.unread_keys import check_extensions, shown
from diffuspec.serve.openai.validation import keys_of, validated

# Keys of a chat, by their names in this API.
_NAMES = {
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
# The SDK's tool_runner goes on without a thread after this.
_NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def ask_message(body: object, model: ServedModel) -> Asked:
    """Check the body of /v1/messages. Raises BadRequestError."""
    read = validated(MessagesBody, keys_of(body))
    given = {"max_tokens": read.max_tokens, "stop": read.stop_sequences, "stream": read.stream}
    job = read_chat(read, given, model)
    return Asked(job, MessagesReply, names=_NAMES)


def read_chat(body: CountBody, given: dict[str, Any], model: ServedModel) -> Job:
    """Return a body as a chat's job. `given`: further keys, named as in a chat.

    Raises BadRequestError.
    """
    extras, is_strict = dict(body.model_extra or {}), model.conventions.is_strict
    if extras.pop("thread", None) is not None:
        raise BadRequestError(
            "thread is not supported: this service stores no conversations, so send the whole one",
            "thread",
            "unsupported_parameter",
            _NO_THREADS,
        )
    extensions, ignored = check_extensions(
        extras, type(body).model_fields, _NAMES, is_strict=is_strict
    )
    if "stop" in extensions and given.get("stop") is not None:
        raise BadRequestError("stop is the same as stop_sequences: only one may be given", "stop")
    left_out = _left_out(body)
    if left_out and is_strict:
        raise BadRequestError(f"tools must be of type custom: {NO_TOOLS}", "tools")
    chat = _chat(body)
    try:
        job = parse("/v1/chat/completions", chat | given | extensions, model)
    except InvalidRequestError as error:
        raise renamed(error, _NAMES) from error
    return replace(job, is_fitted=True).ignoring(left_out + ignored, _NAMES)


def _chat(body: CountBody) -> dict[str, Any]:
    """Return the equivalent chat body; None is the same as not given."""
    output, thinking = body.output_config, body.thinking
    effort = None if output is None else output.effort
    last = body.messages[-1]
    is_continued = last.role == "assistant"
    if is_continued and last.has_calls:
        raise BadRequestError("messages must have the tool_result of each tool_use", "messages")
    form = _form(body)
    described = form and {"type": "json_schema", "json_schema": {"schema": form.schema_}}
    return {
        "messages": messages_of(body.messages, body.system),
        "response_format": described,
        "reasoning_effort": effort,
        "thinking": None if thinking is None else thinking.model_dump(),
        "add_generation_prompt": not is_continued,
        "continue_final_message": is_continued,
        **_tools(body),
    }


def _form(body: CountBody) -> JsonFormat | None:
    newer = None if body.output_config is None else body.output_config.format
    if None not in (newer, body.output_format) and newer != body.output_format:
        raise BadRequestError(
            "output_format is the same as output_config.format: give one", "output_format"
        )
    return newer or body.output_format


def _left_out(body: CountBody) -> tuple[str, ...]:
    """Return the types of the tools that are not the client's own, as keys that are ignored."""
    server_tools = (tool for tool in body.tools or () if isinstance(tool, ServerTool))
    types = (f"tools.{shown(tool.type)}" for tool in server_tools)
    return tuple(dict.fromkeys(types))


def _tools(body: CountBody) -> dict[str, Any]:
    if body.tools is None and body.tool_choice is None:
        return {}
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": tool.strict,
            },
        }
        for tool in body.tools or ()
        if isinstance(tool, AnthropicTool)
    ]
    choice = body.tool_choice
    if choice is None:
        return {"tools": tools}
    if choice.type == "tool" and choice.name is None:
        raise BadRequestError("tool_choice.name is missing", "tool_choice.name")
    named = {"type": "function", "function": {"name": choice.name}}
    return {
        "tools": tools,
        "tool_choice": _CHOICES.get(choice.type, named),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
    }


_OF_ANSWERS = ("max_tokens", "stop_sequences", "stream")


def count_tokens(body: object, tokenizer: Any, model: ServedModel) -> TokenCount:
    """Return the number of tokens of a body's prompt.

    Tokenising a long prompt takes time, so call it in a thread. Raises InvalidRequestError.
    """
    given = {name: value for name, value in keys_of(body).items() if name not in _OF_ANSWERS}
    job = read_chat(validated(CountBody, given), {}, model)
    return {"input_tokens": len(encode_whole(job, tokenizer, model))}
