"""Replies of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from diffuspec.core.types import RequestOutput, TokenLogprobs
from diffuspec.serve.openai.answers import Answer, Exchange
from diffuspec.serve.openai.objects import (
    Completion,
    CompletionChunk,
    TextChoice,
    TextLogprobs,
)
from diffuspec.serve.openai.replies.reply import BaseReply
from diffuspec.serve.openai.token_texts import TextOffsets, finite


class CompletionReply(BaseReply[TextChoice, CompletionChunk]):
    id_prefix = "cmpl-"

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        shows_special = not self._job.sampling.skip_special_tokens
        self._offsets = [
            TextOffsets(self._texts, shows_special=shows_special) for _ in self._answers
        ]

    def begin(self) -> list[CompletionChunk]:
        return [self._chunk([self._begun(one)]) for one in self._answers if self._job.echo]

    def whole(self) -> Completion:
        return {
            "object": "text_completion",
            "id": self._id,
            "created": self._created,
            "model": self._model,
            "choices": [self._choice(answer) for answer in self._answers],
            "usage": self._usage(),
        }

    def _object(self, choices: list[TextChoice]) -> CompletionChunk:
        return {
            "object": "text_completion",
            "id": self._id,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _begun(self, answer: Answer) -> TextChoice:
        return self._text(answer, self._prompt(answer), None, (), has_prompt_ids=True)

    def _choice(self, answer: Answer) -> TextChoice:
        echoed = self._prompt(answer) if self._job.echo else ""
        token_ids: list[int] = answer.token_ids
        found: list[TokenLogprobs | None] = [*answer.logprobs]
        num_echoed = 0
        if self._job.echo:
            num_echoed = len(answer.generation.prompt_token_ids)
            token_ids = [*answer.generation.prompt_token_ids.tolist(), *token_ids]
            found = [None, *answer.prompt_logprobs, *found]
        logprobs = self._logprobs(answer.generation.index, token_ids, found, num_echoed, echoed)
        text = echoed + answer.text
        choice = self._text(answer, text, logprobs, answer.token_ids, has_prompt_ids=True)
        if self._job.reports_prompt:
            choice["prompt_logprobs"] = self._prompt_logprobs(answer)
        return choice

    def _delta(self, index: int, output: RequestOutput) -> TextChoice:
        answer = self._answers[index]
        logprobs = self._logprobs(index, output.token_ids, output.logprobs or ())
        is_first = len(answer.steps) == 1 and not self._job.echo
        return self._text(answer, output.text, logprobs, output.token_ids, has_prompt_ids=is_first)

    def _says(self, choice: TextChoice) -> bool:
        return bool(choice["text"])

    def _text(
        self,
        answer: Answer,
        text: str,
        logprobs: TextLogprobs | None,
        token_ids: Sequence[int],
        *,
        has_prompt_ids: bool,
    ) -> TextChoice:
        choice: TextChoice = {
            "index": answer.generation.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": None if answer.finish_reason is None else answer.finish_reason.value,
            "stop_reason": answer.stop_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = list(token_ids)
            if has_prompt_ids:
                choice["prompt_token_ids"] = answer.generation.prompt_token_ids.tolist()
        return choice

    def _prompt(self, answer: Answer) -> str:
        """Return the prompt as text: as sent, or decoded from its ids if it was ids or was cut."""
        prompt = self._job.prompts[answer.generation.index // self._job.num_choices]
        if isinstance(prompt, str) and self._job.max_prompt_tokens is None:
            return prompt
        return self._texts.text(answer.generation.prompt_token_ids.tolist())

    def _logprobs(
        self,
        index: int,
        token_ids: Sequence[int],
        found: Sequence[TokenLogprobs | None],
        num_echoed: int = 0,
        echoed: str = "",
    ) -> TextLogprobs | None:
        """Return the next tokens of a choice in OpenAI's older format, preceded by the prompt's."""
        if self._job.sampling.logprobs is None:
            return None
        tokens = [self._named(token_id) for token_id in token_ids]
        return {
            "tokens": tokens,
            "token_logprobs": [None if one is None else finite(one.logprob) for one in found],
            "top_logprobs": [
                None if one is None else self._top(token, one)
                for token, one in zip(tokens, found, strict=True)
            ],
            "text_offset": self._offsets[index].of(token_ids, num_echoed, echoed),
        }

    def _top(self, token: str, found: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens by text, and the token itself."""
        top = {self._named(place): finite(logprob) for place, logprob in found.top}
        return {token: finite(found.logprob)} | top

    def _named(self, token_id: int) -> str:
        return self._name(token_id, self._texts.name(token_id))
