"""Jobs: what a body of OpenAI's API asks for, and how to report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from diffuspec.core.errors import ContextLengthError, InvalidRequestError
from diffuspec.core.params import MAX_PREDICTED_TOKENS, SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, TokenIds
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.body_parts import Role
from diffuspec.serve.openai.errors import BadRequestError, in_words_of
from diffuspec.serve.openai.forms import (
    Thinking,
    after_reasoning,
    thinking_after,
    thinking_within,
)
from diffuspec.text.prompt import ChatOptions, Cut, encode_prompt

Endpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/completions"]
_MAX_MARK_TOKENS = 16  # tokens at a prompt's end that contain the mark and its space
ENDPOINTS: tuple[Endpoint, ...] = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request: what to generate, and how to report it. Not tokenised yet."""

    endpoint: Endpoint
    prompts: tuple[Prompt, ...]
    num_choices: int  # answers to each prompt
    sampling: SamplingParams  # max_tokens is set when the length of the prompt is known
    max_tokens: int | None  # None: to the end of the context
    speculation: SpeculationParams | None  # None: the deployment's default
    is_fitted: bool = False  # an answer too long for the context is cut rather than refused
    prediction: str = ""  # text of which answers may repeat large parts
    max_prompt_tokens: int | None = None  # longer prompts are cut; None: refused if they do not fit
    is_cut_at_end: bool = False  # a prompt that is cut loses its end rather than its beginning
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    is_prompt_only: bool = False  # the single token of the answer is not reported
    reports_prompt: bool = False  # report prompt_logprobs, like vLLM
    return_token_ids: bool = False
    names_tokens_by_id: bool = False  # logprobs name tokens by id
    request_id: str | None = None  # id in the body; None: that of the header, or a new one
    form_asked_by: str | None = None  # the body's key that requests a format for the answer
    adds_special_tokens: bool | None = None  # such as BOS; None: see encode_prompt
    role: Role = "assistant"  # role of the message that answers a chat
    # calls of its tools are looked for in answers
    chat: ChatOptions = field(default_factory=ChatOptions)
    is_call_named: bool = False  # the answer is a call of the function named by the request
    conventions: Conventions = field(default_factory=Conventions)  # how its answers are parsed
    hides_reasoning: bool = False
    has_whole_form: bool = False  # its format includes reasoning
    ignored: tuple[str, ...] = ()  # keys without effect that the answer is to name

    @property
    def is_reasoned(self) -> bool:
        """Whether there may be reasoning before the answer."""
        is_chat = self.endpoint == "/v1/chat/completions" and self.role == "assistant"
        return is_chat and (self.conventions.reasoning != "none" or self.conventions.has_channels)

    @property
    def prompt_key(self) -> str:
        """The body's key that contains the prompt."""
        return "messages" if self.endpoint == "/v1/chat/completions" else "prompt"

    def ignoring(self, keys: Sequence[str], names: Mapping[str, str]) -> Job:
        """Return the job with further ignored keys. names: an API's words for those so far."""
        return replace(self, ignored=(*(names.get(key, key) for key in self.ignored), *keys))

    @property
    def reports_drafts(self) -> bool:
        """Whether each chunk contains the draft of its step."""
        return self.speculation is not None and self.speculation.report_drafts


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to generate; `index` is that of its choice."""

    index: int
    prompt_token_ids: TokenIds
    sampling: SamplingParams
    speculation: SpeculationParams | None = None  # None: the deployment's default
    thinking: Thinking = "over"


def encode(job: Job, tokenizer: Any, model: ServedModel) -> tuple[Generation, ...]:
    """Tokenise the prompts of a job. This takes time, so call it in a thread.

    Raises InvalidRequestError, also for prompts that leave no room for an answer.
    """
    generations: list[Generation] = []
    speculation = _speculation(job, tokenizer, model)
    for prompt in job.prompts:
        token_ids = encode_one(prompt, job, tokenizer, model)
        room = model.max_model_len - len(token_ids)
        least = 1 if job.is_fitted else job.max_tokens or 1
        if room < least:
            # Clients recognise this wording and code, and send a shorter prompt.
            raise BadRequestError(
                f"this model's maximum context length is {model.max_model_len} tokens, too few for "
                f"{len(token_ids)} of the prompt and {least} of the answer",
                job.prompt_key,
                "context_length_exceeded",
            )
        thinking = _thinking(job, token_ids, tokenizer)
        sampling = job.sampling.derive(max_tokens=min(job.max_tokens or room, room))
        form = sampling.structured_output
        if form is not None and job.is_reasoned and not job.has_whole_form:
            try:
                form = after_reasoning(form, job.conventions, thinking)
            except InvalidRequestError as error:
                raise in_words_of(error, job.form_asked_by) from error
            sampling = sampling.derive(structured_output=form)
        for choice in range(job.num_choices):
            index, drawn = len(generations), sampling.choice(choice)
            generations.append(Generation(index, token_ids, drawn, speculation, thinking))
    return tuple(generations)


def _thinking(job: Job, token_ids: TokenIds, tokenizer: Any) -> Thinking:
    """Return the state of reasoning at the end of a prompt."""
    if not job.is_reasoned:
        return "over"
    if job.chat.continues_final_message:
        return thinking_within(str(job.prompts[0][-1]["content"]))  # type: ignore[index]
    end = token_ids[-_MAX_MARK_TOKENS:].tolist()
    return thinking_after(tokenizer.backend_tokenizer.decode(end, skip_special_tokens=False))


def _speculation(job: Job, tokenizer: Any, model: ServedModel) -> SpeculationParams | None:
    """Return the job's speculation with the tokens of its prediction, cut to the allowed number."""
    if not job.prediction:
        return job.speculation
    most = Cut(min(MAX_PREDICTED_TOKENS, model.max_model_len), keeps_begin=True)
    prediction = encode_prompt(job.prediction, tokenizer, None, adds_special_tokens=False, cut=most)
    speculation = job.speculation or model.speculation
    return replace(speculation, prediction=tuple(prediction.tolist()))


def encode_one(prompt: Prompt, job: Job, tokenizer: Any, model: ServedModel) -> TokenIds:
    """Tokenise a prompt of a job, and cut it if the job says so. Raises InvalidRequestError."""
    _check_ids(prompt, model.vocab_size)
    most, cut = job.max_prompt_tokens, None
    if most is not None:
        cut = Cut(most, keeps_begin=job.is_cut_at_end)
    adds_special, longest = job.adds_special_tokens, model.max_model_len
    try:
        return encode_prompt(prompt, tokenizer, longest, job.chat, adds_special, cut)
    except ContextLengthError as error:
        raise BadRequestError(str(error), job.prompt_key, "context_length_exceeded") from None


def _check_ids(prompt: Prompt, vocab_size: int) -> None:
    """Raise BadRequestError for a token id, of any size, that the tokenizer does not know."""
    ids = [] if isinstance(prompt, str) else [one for one in prompt if isinstance(one, int)]
    for extreme in (min(ids, default=0), max(ids, default=0)):
        if not 0 <= extreme < vocab_size:
            raise BadRequestError(
                f"prompt token ids must be from 0 to {vocab_size - 1}, got {extreme!s:.40}",
                "prompt",
            )
