"""Replies of /v1/messages."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any, TypeAlias

from diffuspec.core.types import FinishReason, RequestOutput
from diffuspec.serve.messages.objects import (
    AnswerBlock,
    AnthropicError,
    AnthropicMessage,
    EndReason,
    MessageUsage,
    body_of,
)
from diffuspec.serve.openai.answers import Exchange, usage
from diffuspec.serve.openai.errors import ErrorAnswer
from diffuspec.serve.openai.reading.blocks import Block, BlockReader, Change
from diffuspec.serve.openai.tool_calls import call_id, read_arguments

Event: TypeAlias = dict[str, Any]
_DIGEST_BYTES = 24


class MessagesReply:
    """The reply to one request, as a message or as events."""

    def __init__(self, exchange: Exchange) -> None:
        [generation] = exchange.generations
        self._job = exchange.job
        self._id, self._model = exchange.request_id, exchange.model
        self._blocks = BlockReader(self._job, generation)
        self._answer = self._blocks.answer

    def add(self, index: int, output: RequestOutput) -> None:
        """See `Reply.add`."""
        self._blocks.read(output)

    def whole(self) -> AnthropicMessage:
        """See `Reply.whole`."""
        message = self._message()
        message["content"] = [self._block(block) for block in self._blocks.blocks]
        message["stop_reason"], message["stop_sequence"] = self._end()
        return message

    def begin(self) -> Sequence[Event]:
        """Return nothing: the first event contains counts that arrive with the first output."""
        return []

    def events(self, index: int, output: RequestOutput) -> Sequence[Event]:
        """See `Reply.events`."""
        is_first = not self._answer.steps
        changes = self._blocks.read(output)
        events: list[Event] = []
        if is_first:
            begun = self._message()
            del begun["usage"]["speculation"]  # clients would keep it as that of the whole answer
            events += [{"type": "message_start", "message": begun}, {"type": "ping"}]
        return [*events, *(event for change in changes for event in self._described(change))]

    def end(self) -> Sequence[Event]:
        """See `Reply.end`."""
        reason, sequence = self._end()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last: Event = {"type": "message_delta", "delta": delta, "usage": self._usage()}
        return [last, {"type": "message_stop"}]

    def fail(self, answer: ErrorAnswer) -> Sequence[AnthropicError]:
        """See `Reply.fail`."""
        return [body_of(answer, self._id)]

    def _described(self, change: Change) -> list[Event]:
        block, index = change.block, change.block.place
        if change.what == "open":
            empty = self._block(Block(index, block.kind, block.name))
            if empty["type"] == "thinking":
                empty["signature"] = ""
            return [{"type": "content_block_start", "index": index, "content_block": empty}]
        if change.what == "more":
            return [_delta(index, _MORE[block.kind], change.text)]
        stop: Event = {"type": "content_block_stop", "index": index}
        if block.kind != "reasoning":
            return [stop]
        return [_delta(index, ("signature_delta", "signature"), _signature(block.text)), stop]

    def _block(self, block: Block) -> AnswerBlock:
        if block.kind == "text":
            return {"type": "text", "text": block.text}
        if block.kind == "reasoning":
            text = block.text
            return {"type": "thinking", "thinking": text, "signature": _signature(text)}
        is_short = self._job.conventions.has_short_ids
        return {
            "type": "tool_use",
            "id": call_id(f"msg_{self._id}-{block.place}", is_short=is_short),
            "name": block.name,
            "input": read_arguments(block.text),
        }

    def _message(self) -> AnthropicMessage:
        return {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _end(self) -> tuple[EndReason, str | None]:
        """Return why the answer has ended, and the stop sequence if there was one."""
        answer = self._answer
        if answer.finish_reason == FinishReason.LENGTH:
            is_whole = len(answer.token_ids) == self._job.max_tokens
            return ("max_tokens" if is_whole else "model_context_window_exceeded"), None
        has_calls = any(block.kind == "call" for block in self._blocks.blocks)
        if has_calls and not self._blocks.is_cut:
            return "tool_use", None
        if isinstance(answer.stop_reason, str):
            return "stop_sequence", answer.stop_reason
        return "end_turn", None

    def _usage(self) -> MessageUsage:
        counts = usage([self._answer], 1)
        num_cached = counts["prompt_tokens_details"]["cached_tokens"]
        num_reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
        return {
            "input_tokens": counts["prompt_tokens"] - num_cached,
            "cache_read_input_tokens": num_cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": num_reasoning},
            "speculation": counts["speculation"],
        }


_MORE = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _delta(index: int, kind: tuple[str, str], text: str) -> Event:
    name, key = kind
    return {"type": "content_block_delta", "index": index, "delta": {"type": name, key: text}}


def _signature(thinking: str) -> str:
    """Return a digest of a text, without which some clients do not send reasoning back."""
    digest = hashlib.blake2b(thinking.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES)
    return base64.b64encode(digest.digest()).decode()
