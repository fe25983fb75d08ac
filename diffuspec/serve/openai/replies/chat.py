"""Replies of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from diffuspec.core.types import FinishReason, RequestOutput, TokenLogprobs
from diffuspec.serve.openai.answers import Answer, Exchange
from diffuspec.serve.openai.objects import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    ChatFinishReason,
    ChatLogprobs,
    ChatMessage,
    ToolCall,
    ToolCallPart,
)
from diffuspec.serve.openai.reading.pieces import CallPart, Piece, Thought, calls_in
from diffuspec.serve.openai.reading.readers import AnswerReader
from diffuspec.serve.openai.replies.reply import BaseReply
from diffuspec.serve.openai.token_texts import chosen_logprobs
from diffuspec.serve.openai.tool_calls import call_id


class ChatReply(BaseReply[ChatChunkChoice, ChatCompletionChunk]):
    id_prefix = "chatcmpl-"

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._readers = [AnswerReader(self._job, one) for one in exchange.generations]
        self._pieces: list[list[Piece]] = [[] for _ in self._readers]  # stays empty in a stream
        self._num_calls = [0 for _ in self._readers]

    def add(self, index: int, output: RequestOutput) -> None:
        super().add(index, output)
        self._pieces[index] += self._read(index, output)

    def begin(self) -> list[ChatCompletionChunk]:
        chunks = [self._chunk([self._begun(answer)]) for answer in self._answers]
        if self._job.return_token_ids:
            chunks[0]["prompt_token_ids"] = self._prompt_ids()
        return chunks

    def whole(self) -> ChatCompletion:
        """Return the object; keys about the shared prompt are beside the choices."""
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
            "message": self._message(index),
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
            "delta": self._said(index, self._read(index, output)),
            "logprobs": self._logprobs(output.token_ids, output.logprobs or ()),
            "finish_reason": None if reason is None else self._finish_reason(index, reason),
            "stop_reason": output.stop_reason,
        }
        if self._job.return_token_ids:
            choice["token_ids"] = output.token_ids
        return choice

    def _says(self, choice: ChatChunkChoice) -> bool:
        return choice["delta"] != {"content": ""}

    def _read(self, index: int, output: RequestOutput) -> list[Piece]:
        """Return the pieces completed by an output; count its tokens of reasoning."""
        reader = self._readers[index]
        pieces = reader.read(output)
        self._answers[index].num_reasoning_tokens = reader.num_reasoning_tokens
        return pieces

    def _message(self, index: int) -> ChatMessage:
        """Return the reasoning, content and calls of a whole answer."""
        pieces = self._pieces[index]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        message: ChatMessage = {"role": self._job.role, "content": content, "refusal": None}
        if thoughts := _thoughts(pieces):
            message["reasoning_content"] = message["reasoning"] = thoughts
        calls: list[ToolCall] = [
            {
                "id": self._call_id(index, place),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(calls_in(pieces))
        ]
        self._num_calls[index] = len(calls)
        if calls:
            message["content"] = content or None
            message["tool_calls"] = calls
        return message

    def _said(self, index: int, pieces: Sequence[Piece]) -> ChatDelta:
        """Return the reasoning, content and parts of calls completed by an output."""
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        parts: list[ToolCallPart] = []
        for piece in pieces:
            if not isinstance(piece, CallPart):
                continue
            if piece.name is None and parts:  # clients read one part of a call in each chunk
                parts[-1]["function"]["arguments"] += piece.arguments
            else:
                parts.append(self._call_delta(index, piece))
        delta: ChatDelta = {}
        if thoughts := _thoughts(pieces):
            delta["reasoning_content"] = delta["reasoning"] = thoughts
        if content or not (parts or thoughts):
            delta["content"] = content
        if parts:
            delta["tool_calls"] = parts
        return delta

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
        name = f"{self._id}-{index}-{place}"
        return call_id(name, is_short=self._job.conventions.has_short_ids)

    def _finish_reason(self, index: int, reason: FinishReason) -> ChatFinishReason:
        """Return OpenAI's reason: tool_calls for complete calls that the model chose to make."""
        may_tell = reason == FinishReason.STOP and not self._job.is_call_named
        has_called = self._num_calls[index] > 0 and not self._readers[index].is_within_arguments
        return "tool_calls" if may_tell and has_called else reason.value

    def _logprobs(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> ChatLogprobs | None:
        if self._job.sampling.logprobs is None:
            return None
        return {
            "content": chosen_logprobs(self._texts, self._name, token_ids, logprobs),
            "refusal": None,
        }


def _thoughts(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Thought))
