"""Replies of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diffuspec.core.types import FinishReason, RequestOutput, TokenLogprobs
from diffuspec.serve.openai.answers import Answer
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.objects import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatFinishReason,
    ChatLogprobs,
    ChatMessage,
    ChosenTokenLogprob,
    TokenLogprob,
    ToolCall,
    ToolCallPart,
)
from diffuspec.serve.openai.replies.reply import BaseReply, finite
from diffuspec.serve.openai.tools import CallPart, CallReader, calls_in


class ChatReply(BaseReply[ChatChunkChoice, ChatCompletionChunk]):
    def __init__(self, job: Job, generations: Sequence[Generation], *rest: Any, **head: Any):
        super().__init__(job, generations, *rest, **head)
        self._readers = [CallReader() for _ in generations]
        self._num_calls = [0 for _ in generations]

    def begin(self) -> list[ChatCompletionChunk]:
        chunks = [self._chunk([self._begun(answer)]) for answer in self._answers]
        if self._job.return_token_ids:
            chunks[0]["prompt_token_ids"] = self._prompt_ids()
        return chunks

    def whole(self) -> ChatCompletion:
        """Return the object; what concerns the prompt, which all choices share, is beside them."""
        whole: ChatCompletion = {
            "object": "chat.completion",
            "id": self._id,
            "created": self._created,
            "model": self._model,
            "choices": [self._choice(answer) for answer in self._answers],
            "usage": self._usage(),
        }
        if self._job.return_token_ids:
            whole["prompt_token_ids"] = self._prompt_ids()
        if self._job.reports_prompt:
            whole["prompt_logprobs"] = self._prompt_logprobs(self._answers[0])
        return whole

    def _object(self, choices: list[ChatChunkChoice]) -> ChatCompletionChunk:
        return {
            "object": "chat.completion.chunk",
            "id": self._id,
            "created": self._created,
            "model": self._model,
            "choices": choices,
        }

    def _begun(self, answer: Answer) -> ChatChunkChoice:
        return {
            "index": answer.generation.index,
            "delta": {"role": self._job.role, "content": ""},
            "logprobs": None,
            "finish_reason": None,
            "stop_reason": None,
        }

    def _prompt_ids(self) -> list[int]:
        token_ids: list[int] = self._answers[0].generation.prompt_token_ids.tolist()
        return token_ids

    def _choice(self, answer: Answer) -> ChatChoice:
        index = answer.generation.index
        assert answer.finish_reason is not None
        choice: ChatChoice = {
            "index": index,
            "message": self._message(index, answer.text),
            "logprobs": self._logprobs(answer.token_ids, answer.logprobs),
            "finish_reason": self._finish_reason(index, answer.finish_reason),
            "stop_reason": answer.stop_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = answer.token_ids
        return choice

    def _delta(self, index: int, output: RequestOutput) -> ChatChunkChoice:
        reason = output.finish_reason
        choice: ChatChunkChoice = {
            "index": index,
            "delta": self._said(index, output.text, is_last=reason is not None),
            "logprobs": self._logprobs(output.token_ids, output.logprobs or ()),
            "finish_reason": None if reason is None else self._finish_reason(index, reason),
            "stop_reason": output.stop_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = output.token_ids
        return choice

    def _says(self, choice: ChatChunkChoice) -> bool:
        return choice["delta"] != {"content": ""}

    def _message(self, index: int, text: str) -> ChatMessage:
        """Return the content and the calls of a whole answer."""
        message: ChatMessage = {"role": self._job.role, "content": text, "refusal": None}
        if not self._job.chat.tools:
            return message
        reader = self._readers[index]
        pieces = [*reader.read(text), *reader.finish()]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        calls: list[ToolCall] = [
            {
                "id": self._call_id(index, place),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(calls_in(pieces))
        ]
        self._num_calls[index] = len(calls)
        message["content"] = content
        if calls:
            message["content"] = content or None
            message["tool_calls"] = calls
        return message

    def _said(self, index: int, text: str, *, is_last: bool) -> ChatDelta:
        """Return the content and the parts of calls that a part of an answer completes."""
        if not self._job.chat.tools:
            return {"content": text}
        reader = self._readers[index]
        pieces = reader.read(text) + (reader.finish() if is_last else [])
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        parts: list[ToolCallPart] = []
        for piece in pieces:
            if not isinstance(piece, CallPart):
                continue
            if piece.name is None and parts:  # clients read one part of a call in each chunk
                parts[-1]["function"]["arguments"] += piece.arguments
            else:
                parts.append(self._call_delta(index, piece))
        if not parts:
            return {"content": content}
        if not content:
            return {"tool_calls": parts}
        return {"content": content, "tool_calls": parts}

    def _call_delta(self, index: int, part: CallPart) -> ToolCallPart:
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
        return f"call_{self._id}-{index}-{place}"

    def _finish_reason(self, index: int, reason: FinishReason) -> ChatFinishReason:
        """Return OpenAI's reason: tool_calls for whole calls that the model chose to make."""
        may_tell = reason == FinishReason.STOP and not self._job.is_call_named
        has_called = self._num_calls[index] > 0 and not self._readers[index].is_within_arguments
        return "tool_calls" if may_tell and has_called else reason.value

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> ChatLogprobs | None:
        if self._job.sampling.logprobs is None:
            return None
        content: list[ChosenTokenLogprob] = []
        for token_id, found in zip(token_ids, logprobs, strict=True):
            top = [self._token(*pair) for pair in found.top]
            content.append({**self._token(token_id, found.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> TokenLogprob:
        raw = self._texts.raw(token_id)
        name = self._name(token_id, self._texts.token(token_id))
        return {"token": name, "logprob": finite(logprob), "bytes": list(raw)}
