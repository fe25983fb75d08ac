"""Outputs as the objects of OpenAI's API: whole answers, and chunks of a stream."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from diffuspec.core.types import FinishReason, RequestOutput, TokenLogprobs
from diffuspec.serve.openai.answers import Answer, usage
from diffuspec.serve.openai.parsing import Generation, Job
from diffuspec.serve.openai.steps import describe_step
from diffuspec.serve.openai.token_texts import TextOffsets, TokenTexts
from diffuspec.serve.openai.tools import CallPart, CallReader, calls_in


class Reply(ABC):
    """The reply to one job, while its outputs arrive."""

    object: str  # OpenAI's name of the whole
    chunk_object: str

    def __init__(
        self,
        job: Job,
        generations: Sequence[Generation],
        tokenizer: Any,
        *,
        id: str,
        model: str,
        created: int,
    ) -> None:
        """`id` is the request's; `created` are seconds since 1970."""
        self._job = job
        self._texts = TokenTexts(tokenizer)
        self._answers = [Answer(generation) for generation in generations]
        self._head = {"id": id, "created": created, "model": model}

    @property
    def is_finished(self) -> bool:
        return all(answer.finish_reason is not None for answer in self._answers)

    def add(self, index: int, output: RequestOutput) -> None:
        """Take an output of the generation with this index."""
        self._answers[index].add(self._kept(output))

    def whole(self) -> dict[str, Any]:
        """Return the object of a request that does not stream. All answers are finished."""
        choices = [self._choice(answer) for answer in self._answers]
        return self._object(self.object, choices) | {"usage": self._usage()}

    def begin(self) -> list[dict[str, Any]]:
        """Return the chunks that come before all outputs."""
        return []

    def chunk(self, index: int, output: RequestOutput) -> dict[str, Any] | None:
        """Take an output; return what it adds as a chunk, None when that is nothing."""
        output = self._kept(output)
        self._answers[index].add(output)
        choice = self._delta(index, output)
        if not (self._says(choice) or self._is_worth_a_chunk(output)):
            return None
        chunk = self._object(self.chunk_object, [choice])
        if self._job.reports_drafts:
            chunk["speculation"] = describe_step(output, self._texts)
        if self._job.continuous_usage:
            return chunk | {"usage": self._usage()}
        return chunk | {"usage": None} if self._job.include_usage else chunk

    def _begun(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return a chunk that comes before all outputs."""
        chunk = self._object(self.chunk_object, choices)
        return chunk | {"usage": None} if self._job.include_usage else chunk

    def end(self) -> list[dict[str, Any]]:
        """Return the chunks that come after all outputs."""
        if not self._job.include_usage:
            return []
        return [self._object(self.chunk_object, []) | {"usage": self._usage()}]

    @abstractmethod
    def _choice(self, answer: Answer) -> dict[str, Any]: ...

    @abstractmethod
    def _delta(self, index: int, output: RequestOutput) -> dict[str, Any]: ...

    @abstractmethod
    def _says(self, choice: dict[str, Any]) -> bool:
        """Whether a choice of a chunk has any text or part of a call."""

    def _kept(self, output: RequestOutput) -> RequestOutput:
        """Return what a reply reports of an output; with max_tokens 0, no token of its answer."""
        if not self._job.is_prompt_only:
            return output
        reason = output.finish_reason and FinishReason.LENGTH
        nothing: dict[str, Any] = {"token_ids": (), "pieces": (), "text": "", "logprobs": None}
        return replace(output, finish_reason=reason, **nothing)

    def _scores(self, answer: Answer) -> dict[str, Any]:
        """Return the log-probabilities of a prompt as vLLM has them, if they are asked for."""
        if not self._job.reports_prompt:
            return {}
        token_ids = answer.generation.prompt_token_ids.tolist()[1:]
        found: list[dict[str, Any] | None] = [None]
        for token_id, one in zip(token_ids, answer.prompt_logprobs, strict=True):
            ranks = {place: rank for rank, (place, _) in enumerate(one.top, 1)}
            found.append(
                {
                    str(place): {
                        "logprob": _finite(logprob),
                        "rank": ranks.get(place),  # None: below the likeliest that are reported
                        "decoded_token": self._texts.token(place),
                    }
                    for place, logprob in {token_id: one.logprob, **dict(one.top)}.items()
                }
            )
        return {"prompt_logprobs": found}

    def _is_worth_a_chunk(self, output: RequestOutput) -> bool:
        """Whether to send an output without text: of part of a character, a stop string, a call."""
        is_wanted = self._job.return_token_ids or self._job.reports_drafts
        return bool(output.finish_reason or output.logprobs) or is_wanted

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        """Return the prompt's token ids for the first chunk of an answer."""
        answer = self._answers[index]
        if len(answer.steps) > 1:
            return {}
        return {"prompt_token_ids": answer.generation.prompt_token_ids.tolist()}

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"object": kind, **self._head, "choices": choices}

    def _usage(self) -> dict[str, Any]:
        return usage(self._answers, self._job.num_choices)


class ChatReply(Reply):
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, job: Job, generations: Sequence[Generation], *rest: Any, **head: Any):
        super().__init__(job, generations, *rest, **head)
        self._readers = [CallReader() for _ in generations]
        self._num_calls = [0 for _ in generations]

    def begin(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": ""}
        choices = [
            {"index": answer.generation.index, "delta": delta, "logprobs": None}
            for answer in self._answers
        ]
        return [self._begun([choice | {"finish_reason": None}]) for choice in choices]

    def whole(self) -> dict[str, Any]:
        return super().whole() | self._scores(self._answers[0])

    def _choice(self, answer: Answer) -> dict[str, Any]:
        index = answer.generation.index
        message = self._message(index, answer.text)
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", "refusal": None, **message},
            "logprobs": self._logprobs(answer.token_ids, answer.logprobs),
            "finish_reason": self._finish_reason(index, answer.finish_reason),
        }
        if self._job.return_token_ids:
            choice["prompt_token_ids"] = answer.generation.prompt_token_ids.tolist()
            choice["token_ids"] = answer.token_ids
        return choice

    def _delta(self, index: int, output: RequestOutput) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": self._said(index, output.text, is_last=output.finish_reason is not None),
            "logprobs": self._logprobs(output.token_ids, output.logprobs or ()),
            "finish_reason": self._finish_reason(index, output.finish_reason),
        }
        if self._job.return_token_ids:
            choice |= self._prompt_ids(index)
            choice["token_ids"] = output.token_ids
        return choice

    def _says(self, choice: dict[str, Any]) -> bool:
        return bool(choice["delta"] != {"content": ""})

    def _message(self, index: int, text: str) -> dict[str, Any]:
        """Return the content and the calls of a whole answer."""
        if not self._job.tools:
            return {"content": text}
        reader = self._readers[index]
        pieces = [*reader.read(text), *reader.finish()]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        calls = [
            {"id": self._call_id(index, place), "type": "function", "function": asdict(call)}
            for place, call in enumerate(calls_in(pieces))
        ]
        self._num_calls[index] = len(calls)
        return {"content": content or None, "tool_calls": calls} if calls else {"content": content}

    def _said(self, index: int, text: str, *, is_last: bool) -> dict[str, Any]:
        """Return the content and the parts of calls that a part of an answer completes."""
        if not self._job.tools:
            return {"content": text}
        reader = self._readers[index]
        pieces = reader.read(text) + (reader.finish() if is_last else [])
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        parts = [self._call_delta(index, one) for one in pieces if isinstance(one, CallPart)]
        if not parts:
            return {"content": content}
        return ({"content": content} if content else {}) | {"tool_calls": parts}

    def _call_delta(self, index: int, part: CallPart) -> dict[str, Any]:
        if part.name is None:
            return {
                "index": self._num_calls[index] - 1,
                "function": {"arguments": part.arguments},
            }
        place = self._num_calls[index]
        self._num_calls[index] += 1
        return {
            "index": place,
            "id": self._call_id(index, place),
            "type": "function",
            "function": {"name": part.name, "arguments": part.arguments},
        }

    def _call_id(self, index: int, place: int) -> str:
        return f"call_{self._head['id']}-{index}-{place}"

    def _finish_reason(self, index: int, reason: FinishReason | None) -> str | None:
        """Return OpenAI's reason: a call that the request itself names ends with stop."""
        may_tell = reason == FinishReason.STOP and not self._job.is_call_named
        has_called = may_tell and self._num_calls[index] > 0
        return "tool_calls" if has_called else reason

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> dict[str, Any] | None:
        if self._job.sampling.logprobs is None:
            return None
        content = []
        for token_id, found in zip(token_ids, logprobs, strict=True):
            top = [self._token(*pair) for pair in found.top]
            content.append(self._token(token_id, found.logprob) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        raw = self._texts.raw(token_id)
        text = self._texts.token(token_id)
        return {"token": text, "logprob": _finite(logprob), "bytes": list(raw)}


class CompletionReply(Reply):
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, job: Job, generations: Sequence[Generation], *rest: Any, **head: Any):
        super().__init__(job, generations, *rest, **head)
        self._offsets = [TextOffsets(self._texts) for _ in generations]

    def begin(self) -> list[dict[str, Any]]:
        if not self._job.echo:
            return []
        return [
            self._begun([self._text(answer, self._prompt(answer), None, None, ())])
            for answer in self._answers
        ]

    def _choice(self, answer: Answer) -> dict[str, Any]:
        echoed = self._prompt(answer) if self._job.echo else ""
        token_ids: list[int] = answer.token_ids
        found: list[TokenLogprobs | None] = [*answer.logprobs]
        num_echoed = 0
        if self._job.echo:
            num_echoed = len(answer.generation.prompt_token_ids)
            token_ids = [*answer.generation.prompt_token_ids.tolist(), *token_ids]
            found = [None, *answer.prompt_logprobs, *found]
        logprobs = self._logprobs(answer.generation.index, token_ids, found, num_echoed, echoed)
        choice = self._text(
            answer, echoed + answer.text, logprobs, answer.finish_reason, answer.token_ids
        )
        choice |= self._scores(answer)
        if self._job.return_token_ids:
            choice["prompt_token_ids"] = answer.generation.prompt_token_ids.tolist()
        return choice

    def _delta(self, index: int, output: RequestOutput) -> dict[str, Any]:
        answer = self._answers[index]
        logprobs = self._logprobs(index, output.token_ids, output.logprobs or ())
        text = self._text(answer, output.text, logprobs, output.finish_reason, output.token_ids)
        return text | (self._prompt_ids(index) if self._job.return_token_ids else {})

    def _says(self, choice: dict[str, Any]) -> bool:
        return bool(choice["text"])

    def _text(
        self,
        answer: Answer,
        text: str,
        logprobs: dict[str, Any] | None,
        finish_reason: str | None,
        token_ids: Sequence[int],
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": answer.generation.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = list(token_ids)
        return choice

    def _prompt(self, answer: Answer) -> str:
        """Return the prompt as text: as it was sent, or of the token ids that were sent."""
        prompt = self._job.prompts[answer.generation.index // self._job.num_choices]
        if isinstance(prompt, str):
            return prompt
        return self._texts.text(answer.generation.prompt_token_ids.tolist())

    def _logprobs(
        self,
        index: int,
        token_ids: Sequence[int],
        found: Sequence[TokenLogprobs | None],
        num_echoed: int = 0,
        echoed: str = "",
    ) -> dict[str, Any] | None:
        """Return OpenAI's older form for the next tokens of a choice, the prompt's before all."""
        if self._job.sampling.logprobs is None:
            return None
        tokens = [self._texts.name(token_id) for token_id in token_ids]
        return {
            "tokens": tokens,
            "token_logprobs": [one and _finite(one.logprob) for one in found],
            "top_logprobs": [
                one and self._top(token, one) for token, one in zip(tokens, found, strict=True)
            ],
            "text_offset": self._offsets[index].of(token_ids, num_echoed, echoed),
        }

    def _top(self, token: str, found: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens by their texts, and the token itself."""
        top = {self._texts.name(place): _finite(logprob) for place, logprob in found.top}
        return {token: _finite(found.logprob)} | top


def _finite(logprob: float) -> float:
    """Return a log-probability that JSON has; OpenAI's stand-in for none is -9999."""
    return max(logprob, -9999.0)


def make_reply(
    job: Job,
    generations: Sequence[Generation],
    tokenizer: Any,
    *,
    id: str,
    model: str,
    created: int,
) -> Reply:
    """Return the reply of the job's endpoint."""
    is_chat = job.endpoint == "/v1/chat/completions"
    kind, prefix = (ChatReply, "chatcmpl") if is_chat else (CompletionReply, "cmpl")
    return kind(job, generations, tokenizer, id=f"{prefix}-{id}", model=model, created=created)
