"""Replies of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from diffuspec.core.types import FinishReason, RequestOutput, TokenLogprobs
from diffuspec.serve.openai.answers import Answer
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.replies.reply import Reply, finite
from diffuspec.serve.openai.tools import CallPart, CallReader, calls_in


class ChatReply(Reply):
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, job: Job, generations: Sequence[Generation], *rest: Any, **head: Any):
        super().__init__(job, generations, *rest, **head)
        self._readers = [CallReader() for _ in generations]
        self._num_calls = [0 for _ in generations]

    def begin(self) -> list[dict[str, Any]]:
        delta = {"role": self._job.role, "content": ""}
        choices = [
            {"index": answer.generation.index, "delta": delta, "logprobs": None}
            for answer in self._answers
        ]
        ends = {"finish_reason": None, "stop_reason": None}
        first, *others = [self._begun([choice | ends]) for choice in choices]
        return [first | self._prompt_ids(self._answers[0]), *others]

    def whole(self) -> dict[str, Any]:
        """Return the object; what concerns the prompt, which all choices share, is beside them."""
        first = self._answers[0]
        return super().whole() | self._prompt_ids(first) | self._scores(first)

    def _choice(self, answer: Answer) -> dict[str, Any]:
        index = answer.generation.index
        message = self._message(index, answer.text)
        choice: dict[str, Any] = {
            "index": index,
            "message": {"role": self._job.role, "refusal": None, **message},
            "logprobs": self._logprobs(answer.token_ids, answer.logprobs),
            "finish_reason": self._finish_reason(index, answer.finish_reason),
            "stop_reason": answer.stop_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def _delta(self, index: int, output: RequestOutput) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": self._said(index, output.text, is_last=output.finish_reason is not None),
            "logprobs": self._logprobs(output.token_ids, output.logprobs or ()),
            "finish_reason": self._finish_reason(index, output.finish_reason),
            "stop_reason": output.stop_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = output.token_ids
        return choice

    def _says(self, choice: dict[str, Any]) -> bool:
        return bool(choice["delta"] != {"content": ""})

    def _message(self, index: int, text: str) -> dict[str, Any]:
        """Return the content and the calls of a whole answer."""
        if not self._job.chat.tools:
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
        if not self._job.chat.tools:
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
        """Return OpenAI's reason: tool_calls for whole calls that the model chose to make."""
        may_tell = reason == FinishReason.STOP and not self._job.is_call_named
        has_called = self._num_calls[index] > 0 and not self._readers[index].is_within_arguments
        return "tool_calls" if may_tell and has_called else reason

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
        name = self._name(token_id, self._texts.token(token_id))
        return {"token": name, "logprob": finite(logprob), "bytes": list(raw)}
