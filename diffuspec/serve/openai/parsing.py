"""Checks bodies of OpenAI's API, and converts them to jobs.

Used by the HTTP routes and by batch files. Every key that affects an answer is obeyed, ignored and
named, or refused by name; error messages contain no text of users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.parameter import declared
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.bodies import Body, ChatBody, CompletionBody
from diffuspec.serve.openai.errors import BadRequestError, no_such_model
from diffuspec.serve.openai.forms import WORDS, read_form
from diffuspec.serve.openai.jobs import Endpoint, Job
from diffuspec.serve.openai.message_bodies import plain_message, text_of
from diffuspec.serve.openai.reading.readers import reads_special_tokens
from diffuspec.serve.openai.template_hints import read_hints
from diffuspec.serve.openai.tool_forms import read_tools
from diffuspec.serve.openai.unread_keys import SAMPLING, check_rest
from diffuspec.serve.openai.validation import keys_of, validated
from diffuspec.text.prompt import ChatOptions

_MAX_ANSWERS = 64  # answers to one request: prompts times n
DEFAULT_TEMPERATURE = 1.0  # OpenAI's default
_LEAST_TOP_P = 1e-9
# OpenAI's default for completions; chats continue to the end of the context
_DEFAULT_TEXT_TOKENS = 16
# Where an error begins to quote a value that may be a user's text.
_NO_TEXT = re.compile(", got (?!-?[0-9]|inf|a string of |a list of )")
# Parameters whose keys have their own names; OpenAI defines logprobs and max_tokens differently.
_PLAIN_SAMPLING = SAMPLING - {"logprobs", "max_tokens"} - WORDS


def parse(endpoint: Endpoint, body: object, model: ServedModel) -> Job:
    """Check a body. Raises BadRequestError (an InvalidRequestError) naming the parameter.

    The model's name is not checked here: see `check_model`.
    """
    given = keys_of(body)
    if endpoint == "/v1/chat/completions":
        return _chat(validated(ChatBody, given), model)
    return _completion(validated(CompletionBody, given), model)


def check_model(body: object, model: ServedModel) -> None:
    """Raise HttpError for a body that names a model other than this one; it need not name any."""
    name = body.get("model") if isinstance(body, Mapping) else None
    if name is not None and name != model.name:
        raise no_such_model(model.name)


def _chat(body: ChatBody, model: ServedModel) -> Job:
    asked = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(asked) > 1:
        raise BadRequestError(
            "max_tokens and max_completion_tokens are the same; give one", "max_completion_tokens"
        )
    if body.top_logprobs and not body.logprobs:
        raise BadRequestError("top_logprobs needs logprobs: true", "top_logprobs")
    max_tokens = body.max_tokens or body.max_completion_tokens
    max_tokens = _capped(max_tokens, model)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = _sampling(body, num_logprobs, max_tokens or model.max_model_len, model)
    conventions = model.conventions
    hints = read_hints(body, conventions)
    use = read_tools(body, sampling.structured_output, conventions)
    if reads_special_tokens(conventions, has_tools=bool(use.tools)):
        sampling = sampling.derive(skip_special_tokens=False)
    return Job(
        endpoint="/v1/chat/completions",
        prompts=([plain_message(message, conventions) for message in body.messages],),
        sampling=sampling.derive(structured_output=use.form),
        max_tokens=max_tokens,
        form_asked_by="tools" if use.tools else _form_key(body),
        chat=_chat_options(body, use.tools, hints.variables, conventions),
        conventions=conventions,
        hides_reasoning=not body.include_reasoning or hints.hides_reasoning,
        has_whole_form=use.has_messages,
        role="assistant" if body.add_generation_prompt else body.messages[-1].role,
        adds_special_tokens=body.add_special_tokens,
        is_call_named=use.is_named,
        ignored=hints.ignored + _ignored(body, model),
        **_common(body, max_tokens or 1, model),
    )


def _chat_options(
    body: ChatBody,
    tools: Sequence[Mapping[str, Any]],
    hints: Mapping[str, Any],
    conventions: Conventions,
) -> ChatOptions:
    if body.continue_final_message:
        if body.add_generation_prompt:
            raise BadRequestError(
                "continue_final_message needs add_generation_prompt: false",
                "continue_final_message",
            )
        if body.messages[-1].tool_calls:
            raise BadRequestError(
                "continue_final_message needs a final message without tool_calls",
                "continue_final_message",
            )
    return ChatOptions(
        tools,
        {**hints, **(body.chat_template_kwargs or {})},
        adds_generation_prompt=body.add_generation_prompt,
        continues_final_message=body.continue_final_message,
        allows_markup=conventions.allows_markup,
    )


def _completion(body: CompletionBody, model: ServedModel) -> Job:
    prompt = body.prompt
    is_batch = isinstance(prompt, list) and not isinstance(prompt[0], int)
    prompts: tuple[Any, ...] = tuple(prompt) if is_batch else (prompt,)
    if len(prompts) * body.n > _MAX_ANSWERS:
        raise BadRequestError(
            f"prompts times n must be at most {_MAX_ANSWERS}, got {len(prompts) * body.n}", "prompt"
        )
    is_prompt_only = body.max_tokens == 0
    if is_prompt_only and not body.echo:
        raise BadRequestError("max_tokens must be at least 1 without echo", "max_tokens")
    max_tokens = 1 if is_prompt_only else body.max_tokens or _DEFAULT_TEXT_TOKENS
    max_tokens = _capped(max_tokens, model) or max_tokens
    sampling = _sampling(body, body.logprobs, max_tokens, model)
    if body.echo and body.logprobs is not None:
        if body.stream:
            raise BadRequestError("echo with logprobs cannot be streamed", "echo")
        num_top = max(body.logprobs, sampling.prompt_logprobs or 0)
        sampling = sampling.derive(prompt_logprobs=num_top)
    return Job(
        endpoint="/v1/completions",
        prompts=prompts,
        sampling=sampling,
        max_tokens=max_tokens,
        form_asked_by=_form_key(body),
        adds_special_tokens=body.add_special_tokens,
        echo=body.echo,
        is_prompt_only=is_prompt_only,
        ignored=_ignored(body, model),
        **_common(body, max_tokens, model),
    )


def _common(body: Body, num_answer_tokens: int, model: ServedModel) -> dict[str, Any]:
    options = body.stream_options
    if options is not None and not body.stream:
        raise BadRequestError("stream_options needs stream: true", "stream_options")
    reports_prompt = (body.model_extra or {}).get("prompt_logprobs") is not None
    if reports_prompt and body.stream:
        raise BadRequestError("prompt_logprobs cannot be streamed", "prompt_logprobs")
    return {
        "num_choices": body.n,
        "speculation": _speculation(body.speculation, model.speculation),
        "prediction": "" if body.prediction is None else text_of(body.prediction.content),
        "max_prompt_tokens": _max_prompt_tokens(body, model.max_model_len - num_answer_tokens),
        "is_cut_at_end": body.truncation_side == "right",
        "stream": body.stream,
        "include_usage": options is not None and options.include_usage,
        "continuous_usage": options is not None and options.continuous_usage_stats,
        "return_token_ids": body.return_token_ids,
        "names_tokens_by_id": body.return_tokens_as_token_ids,
        "request_id": body.request_id,
        "reports_prompt": reports_prompt,
    }


def _max_prompt_tokens(body: Body, room: int) -> int | None:
    """Return the number of tokens to which prompts are cut; None: not cut."""
    most = body.truncate_prompt_tokens
    if most is None or room < 1:  # max_tokens leaves no room for a prompt, and is refused later
        return None
    if not (most == -1 or 1 <= most <= room):
        raise BadRequestError(
            f"truncate_prompt_tokens must be -1 or from 1 to {room}, what the context has room for "
            f"beside the answer, got {most}",
            "truncate_prompt_tokens",
        )
    return room if most == -1 else most


def _capped(max_tokens: int | None, model: ServedModel) -> int | None:
    """Return the longest answer, limited by the model's generation_config.json."""
    return min((one for one in (max_tokens, model.conventions.max_tokens) if one), default=None)


def _sampling(
    body: Body, num_logprobs: int | None, max_tokens: int, model: ServedModel
) -> SamplingParams:
    """Return the sampling parameters of a body, or the model's."""
    extras = body.model_extra or {}
    form = read_form(extras)
    given = {name: value for name, value in extras.items() if name in _PLAIN_SAMPLING}
    if not (body.spaces_between_special_tokens or given.get("skip_special_tokens", True)):
        raise BadRequestError(
            "spaces_between_special_tokens must be true with skip_special_tokens: false",
            "spaces_between_special_tokens",
        )
    given = {"temperature": DEFAULT_TEMPERATURE, **model.conventions.sampling, **given}
    if given.get("top_k") == -1:  # vLLM's value for all tokens
        given["top_k"] = 0
    if given.get("seed") == -1:  # vLLM's value for no seed
        given["seed"] = None
    if given.get("top_p") == 0:  # OpenAI's value for only the likeliest token
        given["top_p"] = _LEAST_TOP_P
    given |= {"logprobs": num_logprobs, "max_tokens": max_tokens, "structured_output": form}
    return _make(SamplingParams, given)


def _ignored(body: Body, model: ServedModel) -> tuple[str, ...]:
    """Return the ignored keys that the answer is to name. Raises BadRequestError."""
    read = _PLAIN_SAMPLING | WORDS
    return check_rest(
        {name: value for name, value in (body.model_extra or {}).items() if name not in read},
        read | type(body).model_fields.keys(),
        num_choices=body.n,
        is_strict=model.conventions.is_strict,
    )


def _form_key(body: Body) -> str | None:
    return next((name for name in body.model_extra or {} if name in WORDS), None)


def _speculation(
    given: Mapping[str, Any] | str | None, default: SpeculationParams
) -> SpeculationParams | None:
    if given is None:
        return None
    if isinstance(given, str):
        return replace(default, policy="off")
    known = [one.name for one in declared(SpeculationParams)]
    for name in given:
        if name not in known:
            raise BadRequestError(
                f"speculation: unknown key {name[:64]!r}; known are {', '.join(known)}",
                "speculation",
                "unknown_parameter",
            )
    return _make(lambda **values: replace(default, **values), given, "speculation.")


P = TypeVar("P")


def _make(make: Callable[..., P], given: Mapping[str, Any], prefix: str = "") -> P:
    """Build parameters. Raises BadRequestError naming the wrong one, without its text."""
    try:
        return make(**given)
    except InvalidRequestError as error:
        message = str(error)
        name = next((one for one in given if message.startswith(f"{one} ")), None)
        if name is not None:
            message = _NO_TEXT.split(message)[0]
        raise BadRequestError(message, None if name is None else prefix + name) from None
