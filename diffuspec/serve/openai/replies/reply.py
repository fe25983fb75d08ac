"""What the replies of both endpoints share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from diffuspec.core.types import FinishReason, RequestOutput, VerifiedDraft
from diffuspec.serve.openai.answers import Answer, Exchange, usage
from diffuspec.serve.openai.errors import ErrorAnswer
from diffuspec.serve.openai.objects import (
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
    Error,
    PromptLogprob,
    TextChoice,
    Usage,
)
from diffuspec.serve.openai.speculation_objects import StepReport, StepToken, StepTree
from diffuspec.serve.openai.token_texts import TokenTexts, finite

Whole: TypeAlias = ChatCompletion | Completion
ChunkChoice = TypeVar("ChunkChoice", ChatChunkChoice, TextChoice)
Chunk = TypeVar("Chunk", ChatCompletionChunk, CompletionChunk)


class BaseReply(ABC, Generic[ChunkChoice, Chunk]):
    """The reply to one job, while its outputs arrive."""

    id_prefix: ClassVar[str]

    def __init__(self, exchange: Exchange) -> None:
        self._job = exchange.job
        self._texts = TokenTexts(exchange.tokenizer)
        self._answers = [Answer(generation) for generation in exchange.generations]
        self._id = self.id_prefix + exchange.request_id
        self._created = exchange.created
        self._model = exchange.model

    def add(self, index: int, output: RequestOutput) -> None:
        """Take an output of the generation with this index."""
        self._answers[index].add(self._kept(output))

    @abstractmethod
    def whole(self) -> Whole:
        """Return the object of a non-streaming request. All answers are finished."""

    def begin(self) -> Sequence[Chunk]:
        """Return the chunks before all outputs."""
        return []

    def chunk(self, index: int, output: RequestOutput) -> Chunk | None:
        """Take an output; return the resulting chunk, or None if it is empty."""
        output = self._kept(output)
        self._answers[index].add(output)
        choice = self._delta(index, output)
        if not (self._says(choice) or self._is_worth_a_chunk(output)):
            return None
        chunk = self._chunk([choice])
        if self._job.reports_drafts:
            chunk["speculation"] = describe_step(output, self._texts)
        if self._job.continuous_usage:
            chunk["usage"] = self._usage()
        return chunk

    def events(self, index: int, output: RequestOutput) -> Sequence[Chunk]:
        """Take an output; return at most one resulting chunk."""
        chunk = self.chunk(index, output)
        return [] if chunk is None else [chunk]

    def fail(self, answer: ErrorAnswer) -> Sequence[Error]:
        """Return the events that end a failed stream."""
        return [answer.body()]

    def end(self) -> Sequence[Chunk]:
        """Return the chunks after all outputs."""
        if not self._job.include_usage:
            return []
        chunk = self._chunk([])
        chunk["usage"] = self._usage()
        return [chunk]

    def _chunk(self, choices: list[ChunkChoice]) -> Chunk:
        """Return a chunk. Its usage is null if the last chunk has the usage of the whole reply."""
        chunk = self._object(choices)
        if self._job.include_usage:
            chunk["usage"] = None
        return chunk

    @abstractmethod
    def _object(self, choices: list[ChunkChoice]) -> Chunk:
        """Return the object of a chunk, without its usage."""

    @abstractmethod
    def _delta(self, index: int, output: RequestOutput) -> ChunkChoice: ...

    @abstractmethod
    def _says(self, choice: ChunkChoice) -> bool:
        """Return whether a choice in a chunk has any text or part of a call."""

    def _kept(self, output: RequestOutput) -> RequestOutput:
        """Return the part of an output to report; with max_tokens 0, none of its tokens."""
        if not self._job.is_prompt_only:
            return output
        reason = output.finish_reason and FinishReason.LENGTH
        nothing: dict[str, Any] = {"token_ids": (), "pieces": (), "text": "", "logprobs": None}
        return replace(output, finish_reason=reason, stop_reason=None, **nothing)

    def _prompt_logprobs(self, answer: Answer) -> list[dict[str, PromptLogprob] | None]:
        """Return the log-probabilities of a prompt in vLLM's format."""
        token_ids = answer.generation.prompt_token_ids.tolist()[1:]
        found: list[dict[str, PromptLogprob] | None] = [None]
        for token_id, one in zip(token_ids, answer.prompt_logprobs, strict=True):
            # Equally likely tokens at the top keep their order.
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
        return found

    def _is_worth_a_chunk(self, output: RequestOutput) -> bool:
        """Return whether to send an output without text, such as a part of a character."""
        is_wanted = self._job.return_token_ids or self._job.reports_drafts
        return bool(output.finish_reason or output.logprobs) or is_wanted

    def _name(self, token_id: int, text: str) -> str:
        """Return the name that logprobs give a token with this text."""
        return f"token_id:{token_id}" if self._job.names_tokens_by_id else text

    def _usage(self) -> Usage:
        has_prediction = bool(self._job.prediction)
        return usage(self._answers, self._job.num_choices, has_prediction=has_prediction)


def describe_step(output: RequestOutput, texts: TokenTexts) -> StepReport:
    """Return the key `speculation` of a chunk.

    tokens: those that the step added; the first num_accepted_tokens were drafted, the rest are the
    target's own. tree: what was verified; null without a draft. Seconds are by stage.
    """
    step = output.step
    tokens: list[StepToken] = [
        {"id": token_id, "text": piece}
        for token_id, piece in zip(output.token_ids, output.pieces, strict=True)
    ]
    return {
        "tokens": tokens,
        "num_accepted_tokens": output.num_accepted_tokens,
        "num_draft_tokens": step.num_draft_tokens,
        "tree": None if output.draft is None else _describe_tree(output.draft, texts),
        "seconds": {
            "draft": round(step.draft_seconds, 6),
            "search": round(step.search_seconds, 6),
            "verify": round(step.verify_seconds, 6),
            "transport": round(step.transport_seconds, 6),
            "step": round(step.step_seconds, 6),
        },
        "pre_draft": step.pre_draft,
        "fallback": step.fallback,
    }


def _describe_tree(draft: VerifiedDraft, texts: TokenTexts) -> StepTree:
    """Describe a tree. The parent -1 is the last token before the step."""
    return {
        "token_ids": draft.tree.token_ids,
        "texts": [texts.raw(one).decode(errors="replace") for one in draft.tree.token_ids],
        "parents": draft.tree.parents,
        "probabilities": [round(math.exp(min(one, 0.0)), 4) for one in draft.confidences],
        "accepted": draft.accepted_nodes,
    }
