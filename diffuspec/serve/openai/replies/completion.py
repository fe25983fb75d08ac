"""Replies of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diffuspec.core.types import RequestOutput, TokenLogprobs
from diffuspec.serve.openai.answers import Answer
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.replies.reply import Reply, finite
from diffuspec.serve.openai.token_texts import TextOffsets


class CompletionReply(Reply):
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, job: Job, generations: Sequence[Generation], *rest: Any, **head: Any):
        super().__init__(job, generations, *rest, **head)
        shows_special = not job.sampling.skip_special_tokens
        self._offsets = [TextOffsets(self._texts, shows_special=shows_special) for _ in generations]

    def begin(self) -> list[dict[str, Any]]:
        if not self._job.echo:
            return []
        return [
            self._begun([self._text(one, self._prompt(one), None, ()) | self._prompt_ids(one)])
            for one in self._answers
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
        choice = self._text(answer, echoed + answer.text, logprobs, answer.token_ids)
        return choice | self._prompt_ids(answer) | self._scores(answer)

    def _delta(self, index: int, output: RequestOutput) -> dict[str, Any]:
        answer = self._answers[index]
        logprobs = self._logprobs(index, output.token_ids, output.logprobs or ())
        text = self._text(answer, output.text, logprobs, output.token_ids)
        is_first = len(answer.steps) == 1 and not self._job.echo
        return text | (self._prompt_ids(answer) if is_first else {})

    def _says(self, choice: dict[str, Any]) -> bool:
        return bool(choice["text"])

    def _text(
        self,
        answer: Answer,
        text: str,
        logprobs: dict[str, Any] | None,
        token_ids: Sequence[int],
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": answer.generation.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = list(token_ids)
        return choice

    def _prompt(self, answer: Answer) -> str:
        """Return the prompt as text: as it was sent, or of its token ids, also if it was cut."""
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
    ) -> dict[str, Any] | None:
        """Return OpenAI's older form for the next tokens of a choice, the prompt's before all."""
        if self._job.sampling.logprobs is None:
            return None
        tokens = [self._named(token_id) for token_id in token_ids]
        return {
            "tokens": tokens,
            "token_logprobs": [one and finite(one.logprob) for one in found],
            "top_logprobs": [
                one and self._top(token, one) for token, one in zip(tokens, found, strict=True)
            ],
            "text_offset": self._offsets[index].of(token_ids, num_echoed, echoed),
        }

    def _top(self, token: str, found: TokenLogprobs) -> dict[str, float]:
        """Return the likeliest tokens by their texts, and the token itself."""
        top = {self._named(place): finite(logprob) for place, logprob in found.top}
        return {token: finite(found.logprob)} | top

    def _named(self, token_id: int) -> str:
        return self._name(token_id, self._texts.name(token_id))
