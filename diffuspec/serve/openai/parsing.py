"""Bodies of OpenAI's API as jobs: what to generate, and how to report it.

Used by the HTTP routes and by batch files. Everything that would change an answer is obeyed or
refused by its name; messages of errors contain no text of a user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, TypeVar

from pydantic import ValidationError

from diffuspec.core.errors import ContextLengthError, InvalidRequestError
from diffuspec.core.parameter import declared
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, TokenIds
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.openai.bodies import Body, ChatBody, CompletionBody, Message
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.text.prompt import encode_prompt

Endpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/completions"]
ENDPOINTS: tuple[Endpoint, ...] = ("/v1/chat/completions", "/v1/completions")

_MAX_ANSWERS = 16  # of one request: prompts times n
_DEFAULT_TEMPERATURE = 1.0  # OpenAI's
_DEFAULT_TEXT_TOKENS = 16  # OpenAI's, of completions; a chat goes on to the end of the context
_IGNORED = frozenset(
    (
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "verbosity",
        "priority",
    )
)
# What is not implemented and changes answers, with the value at which it does not.
_NEUTRAL: dict[str, object] = {
    "best_of": 1,
    "suffix": "",
    "use_beam_search": False,
    "length_penalty": 1,
    "early_stopping": False,
    "min_p": 0,
    "min_tokens": 0,
    "logit_bias": {},
    "bad_words": [],
    "allowed_token_ids": [],
    "prompt_logprobs": 0,
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": -1,
    "add_special_tokens": True,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "chat_template": "",
    "chat_template_kwargs": {},
    "documents": [],
    "modalities": ["text"],
    "audio": {},
    "prediction": {},
    "reasoning_effort": "none",
    "web_search_options": {},
    "functions": [],
    "function_call": "none",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "guided_json": {},
    "guided_regex": "",
    "guided_choice": [],
    "guided_grammar": "",
    "structured_outputs": {},
}
_SHAPED = frozenset({"logprobs", "max_tokens"})  # declared parameters that OpenAI has otherwise

B = TypeVar("B", bound=Body)


@dataclass(frozen=True, slots=True)
class Job:
    """A request, checked: what to generate, and how to report it. Not tokenised yet."""

    endpoint: Endpoint
    prompts: tuple[Prompt, ...]
    num_choices: int  # answers to each prompt
    sampling: SamplingParams  # max_tokens is set when the length of the prompt is known
    max_tokens: int | None  # None: to the end of the context
    speculation: SpeculationParams | None  # None: the deployment's
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    return_token_ids: bool = False

    @property
    def reports_drafts(self) -> bool:
        """Whether each chunk has the draft of its step."""
        return self.speculation is not None and self.speculation.report_drafts


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to make. `index` is its place among the choices."""

    index: int
    prompt_token_ids: TokenIds
    sampling: SamplingParams


def parse(endpoint: Endpoint, body: object, model: ServedModel) -> Job:
    """Check a body. Raises BadRequestError (an InvalidRequestError) naming the parameter.

    The model's name is not checked: see `check_model`.
    """
    given = _given(body)
    if endpoint == "/v1/chat/completions":
        return _chat(_validate(ChatBody, given), model)
    return _completion(_validate(CompletionBody, given), model)


def encode(job: Job, tokenizer: Any, model: ServedModel) -> tuple[Generation, ...]:
    """Tokenise the prompts of a job: the part that takes time, to be done in a thread.

    Raises InvalidRequestError, ContextLengthError for prompts that leave no room for an answer.
    """
    generations: list[Generation] = []
    for prompt in job.prompts:
        token_ids = encode_prompt(prompt, tokenizer, model.max_model_len)
        room = model.max_model_len - len(token_ids)
        if room < (job.max_tokens or 1):
            raise ContextLengthError(
                f"{len(token_ids)} prompt tokens and {job.max_tokens or 1} of the answer do not "
                f"fit the context of {model.max_model_len} tokens"
            )
        sampling = replace(job.sampling, max_tokens=job.max_tokens or room)
        for choice in range(job.num_choices):
            seeded = replace(sampling, seed=_nth_seed(sampling.seed, choice))
            generations.append(Generation(len(generations), token_ids, seeded))
    return tuple(generations)


def check_model(body: object, model: ServedModel) -> bool:
    """Return whether a body is for this model: by its name, or by none."""
    name = body.get("model") if isinstance(body, Mapping) else None
    return name is None or name == model.name


def _nth_seed(seed: int | None, choice: int) -> int | None:
    """Return seed + choice, within 64 bits."""
    return None if seed is None else (seed + choice + 2**63) % 2**64 - 2**63


def _given(body: object) -> dict[str, Any]:
    """Return a body's keys that are not null, which is the same as not given."""
    if not isinstance(body, Mapping):
        raise BadRequestError("the body must be a JSON object")
    return {str(key): value for key, value in body.items() if value is not None}


def _validate(kind: type[B], given: Mapping[str, Any]) -> B:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(str(part) for part in problem["loc"][:4])[:80]
        what = problem["msg"].replace("Input should be", "must be")
        raise BadRequestError(f"{param}: {what[:1].lower()}{what[1:]}", param) from None


def _chat(body: ChatBody, model: ServedModel) -> Job:
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise BadRequestError(
            "max_tokens and max_completion_tokens are the same; give one", "max_completion_tokens"
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequestError("top_logprobs needs logprobs: true", "top_logprobs")
    if body.tools:
        raise BadRequestError("tools are not supported", "tools", "unsupported_parameter")
    messages = [_plain_message(message) for message in body.messages]
    return Job(
        endpoint="/v1/chat/completions",
        prompts=(messages,),
        sampling=_sampling(body, (body.top_logprobs or 0) if body.logprobs else None),
        max_tokens=body.max_tokens or body.max_completion_tokens,
        **_common(body, model),
    )


def _completion(body: CompletionBody, model: ServedModel) -> Job:
    prompt = body.prompt
    is_batch = isinstance(prompt, list) and not isinstance(prompt[0], int)
    prompts: tuple[Any, ...] = tuple(prompt) if is_batch else (prompt,)
    if len(prompts) * body.n > _MAX_ANSWERS:
        raise BadRequestError(
            f"prompts times n must be at most {_MAX_ANSWERS}, got {len(prompts) * body.n}", "prompt"
        )
    if body.echo and body.logprobs is not None:
        raise BadRequestError(
            "echo with logprobs is not supported: prompts have none", "echo",
            "unsupported_parameter",
        )  # fmt: skip
    return Job(
        endpoint="/v1/completions",
        prompts=prompts,
        sampling=_sampling(body, body.logprobs),
        max_tokens=body.max_tokens or _DEFAULT_TEXT_TOKENS,
        echo=body.echo,
        **_common(body, model),
    )


def _common(body: Body, model: ServedModel) -> dict[str, Any]:
    options = body.stream_options
    if options is not None and not body.stream:
        raise BadRequestError("stream_options needs stream: true", "stream_options")
    return {
        "num_choices": body.n,
        "speculation": _speculation(body.speculation, model.speculation),
        "stream": body.stream,
        "include_usage": options is not None and options.include_usage,
        "continuous_usage": options is not None and options.continuous_usage_stats,
        "return_token_ids": body.return_token_ids,
    }


def _plain_message(message: Message) -> dict[str, str]:
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    return {"role": message.role, "content": content or ""}


def _sampling(body: Body, num_logprobs: int | None) -> SamplingParams:
    """Return the declared parameters that a body has; refuse what is not known."""
    known = {one.name for one in declared(SamplingParams)} - _SHAPED
    extras = body.model_extra or {}
    for name, value in extras.items():
        if name in known or name in _IGNORED:
            continue
        if name not in _NEUTRAL:
            raise BadRequestError(
                f"unknown parameter {name[:64]!r}", name[:64], "unknown_parameter"
            )
        is_best_of = name == "best_of" and value == body.n
        if value != _NEUTRAL[name] and not is_best_of:
            raise BadRequestError(f"{name} is not supported", name, "unsupported_parameter")
    given = {name: value for name, value in extras.items() if name in known}
    given.setdefault("temperature", _DEFAULT_TEMPERATURE)
    if given.get("top_k") == -1:  # vLLM's word for all
        given["top_k"] = 0
    return _make(SamplingParams, given | {"logprobs": num_logprobs})


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
    """Build parameters. Raises BadRequestError naming the one that is wrong, without its text."""
    try:
        return make(**given)
    except InvalidRequestError as error:
        message = str(error)
        name = next((one for one in given if message.startswith(f"{one} ")), None)
        if name is not None and not isinstance(given[name], int | float):
            message = message.partition(", got ")[0]
        raise BadRequestError(message, None if name is None else prefix + name) from None
