"""Requests of /v1/messages, read as chats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.messages.blocks import messages_of
from diffuspec.serve.messages.bodies import CountBody, MessagesBody, Thinking
from diffuspec.serve.messages.objects import TokenCount
from diffuspec.serve.messages.reply import MessagesReply
from diffuspec.serve.openai.asking import Asked
from diffuspec.serve.openai.errors import BadRequestError, renamed
from diffuspec.serve.openai.jobs import Job
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.tokenization import encode_whole
from diffuspec.serve.openai.unsupported import check_extensions
from diffuspec.serve.openai.validation import keys_of, validated

# Keys of a chat, by their names in this API.
_NAMES = {
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
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
    extensions = check_extensions(body.model_extra or {}, type(body).model_fields)
    if "stop" in extensions and given.get("stop") is not None:
        raise BadRequestError("stop is the same as stop_sequences: only one may be given", "stop")
    chat = _chat(body, model.conventions)
    variables = extensions.pop("chat_template_kwargs", {})
    if isinstance(variables, dict):
        chat["chat_template_kwargs"] |= variables
    else:
        chat["chat_template_kwargs"] = variables
    try:
        job = parse("/v1/chat/completions", chat | given | extensions, model)
    except InvalidRequestError as error:
        raise renamed(error, _NAMES) from error
    return replace(job, is_fitted=True)


def _chat(body: CountBody, conventions: Conventions) -> dict[str, Any]:
    """Return the equivalent chat body; None is the same as not given."""
    output, thinking = body.output_config, body.thinking
    effort = None if output is None else output.effort
    last = body.messages[-1]
    is_continued = last.role == "assistant"
    if is_continued and last.has_calls:
        raise BadRequestError("messages must have the tool_result of each tool_use", "messages")
    form = None if output is None else output.format
    described = form and {"type": "json_schema", "json_schema": {"schema": form.schema_}}
    return {
        "messages": messages_of(body.messages, body.system),
        "response_format": described,
        "reasoning_effort": "xhigh" if effort == "max" else effort,
        "chat_template_kwargs": _thinking(thinking, conventions),
        "include_reasoning": thinking is None or thinking.display != "omitted",
        "add_generation_prompt": not is_continued,
        "continue_final_message": is_continued,
        **_tools(body),
    }


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


def _thinking(thinking: Thinking | None, conventions: Conventions) -> dict[str, Any]:
    """Return the chat template's variable that `thinking` sets."""
    if thinking is None or thinking.type == "adaptive":
        return {}
    is_wanted = thinking.type == "enabled"
    if "enable_thinking" in conventions.template:
        return {"enable_thinking": is_wanted}
    reasons = conventions.reasoning != "none" or conventions.has_channels
    if is_wanted != reasons:
        right = "disabled" if is_wanted else "enabled"
        raise BadRequestError(
            f"thinking.type must be {right}: this model's chat template cannot change it",
            "thinking.type",
            "unsupported_parameter",
        )
    return {}


_OF_ANSWERS = ("max_tokens", "stop_sequences", "stream")


def count_tokens(body: object, tokenizer: Any, model: ServedModel) -> TokenCount:
    """Return the number of tokens of a body's prompt.

    Tokenising a long prompt takes time, so call it in a thread. Raises InvalidRequestError.
    """
    given = {name: value for name, value in keys_of(body).items() if name not in _OF_ANSWERS}
    job = read_chat(validated(CountBody, given), {}, model)
    return {"input_tokens": len(encode_whole(job, tokenizer, model))}
