"""What the replies of both endpoints share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from diffuspec.core.types import FinishReason, RequestOutput
from diffuspec.serve.openai.answers import Answer, usage
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.steps import describe_step
from diffuspec.serve.openai.token_texts import TokenTexts


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
        return replace(output, finish_reason=reason, stop_reason=None, **nothing)

    def _scores(self, answer: Answer) -> dict[str, Any]:
        """Return the log-probabilities of a prompt as vLLM has them, if they are asked for."""
        if not self._job.reports_prompt:
            return {}
        token_ids = answer.generation.prompt_token_ids.tolist()[1:]
        found: list[dict[str, Any] | None] = [None]
        for token_id, one in zip(token_ids, answer.prompt_logprobs, strict=True):
            # Of tokens that are as likely, those at the top have the order that they have there.
            ranks = {token_id: one.rank, **{top: n for n, (top, _) in enumerate(one.top, 1)}}
            found.append(
                {
                    str(place): {
                        "logprob": finite(logprob),
                        "rank": ranks[place],
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

    def _name(self, token_id: int, text: str) -> str:
        """Return how logprobs name a token that has this text."""
        return f"token_id:{token_id}" if self._job.names_tokens_by_id else text

    def _prompt_ids(self, answer: Answer) -> dict[str, Any]:
        """Return the token ids of an answer's prompt, if they are asked for."""
        if not self._job.return_token_ids:
            return {}
        return {"prompt_token_ids": answer.generation.prompt_token_ids.tolist()}

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"object": kind, **self._head, "choices": choices}

    def _usage(self) -> dict[str, Any]:
        return usage(self._answers, self._job.num_choices)


def finite(logprob: float) -> float:
    """Return a log-probability that JSON has; OpenAI's stand-in for none is -9999."""
    return max(logprob, -9999.0)
