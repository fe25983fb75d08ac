"""Replies of /v1/responses."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from diffuspec.core.params import SamplingParams
from diffuspec.core.types import FinishReason, RequestOutput
from diffuspec.serve.openai.answers import Exchange, usage
from diffuspec.serve.openai.errors import ErrorAnswer
from diffuspec.serve.openai.objects import ChosenTokenLogprob
from diffuspec.serve.openai.reading.blocks import BlockReader, Change
from diffuspec.serve.openai.token_texts import TokenTexts, chosen_logprobs
from diffuspec.serve.responses.bodies import ReasoningOptions, ResponsesBody, TextOptions
from diffuspec.serve.responses.objects import (
    IncompleteDetails,
    OutputItem,
    RepeatedParameters,
    ResponseObject,
    ResponseText,
    ResponseUsage,
    Status,
)
from diffuspec.serve.responses.output import Event, Output
from diffuspec.serve.responses.tools import NamespaceTool, OtherTool, ResponsesTool

_CUT: IncompleteDetails = {"reason": "max_output_tokens"}


class ResponsesReply:
    """The reply to one request, as output items or as numbered events."""

    def __init__(
        self,
        body: ResponsesBody,
        namespaces: Mapping[str, tuple[str, str]],
        exchange: Exchange,
    ) -> None:
        """namespaces: see Output."""
        [generation] = exchange.generations
        self._body = body
        self._job = exchange.job
        self._id, self._model = exchange.request_id, exchange.model
        self._created = exchange.created
        self._texts = TokenTexts(exchange.tokenizer)
        self._blocks = BlockReader(self._job, generation, has_text=True)
        self._answer = self._blocks.answer
        self._output = Output(
            self._id, namespaces, has_short_ids=self._job.conventions.has_short_ids
        )
        self._num_events = 0

    def add(self, index: int, output: RequestOutput) -> None:
        """See `Reply.add`."""
        self._changes(output)

    def whole(self) -> ResponseObject:
        """See `Reply.whole`."""
        return self._response(self._end_status)

    def begin(self) -> Sequence[Event]:
        """See `Reply.begin`."""
        kinds = ("response.created", "response.in_progress")
        return [self._lifecycle(kind, "in_progress") for kind in kinds]

    def events(self, index: int, output: RequestOutput) -> Sequence[Event]:
        """See `Reply.events`."""
        return [
            self._numbered(event)
            for change in self._changes(output)
            for event in self._output.events(change, self._status_of(change))
        ]

    def end(self) -> Sequence[Event]:
        """See `Reply.end`."""
        status = self._end_status
        return [self._lifecycle(f"response.{status}", status)]

    def fail(self, answer: ErrorAnswer) -> Sequence[Event]:
        """See `Reply.fail`."""
        told = {"code": answer.code, "message": answer.message, "param": answer.param}
        error = self._numbered({"type": "error", **told})
        failed = self._lifecycle("response.failed", "failed")
        failed["response"]["error"] = {"code": answer.code, "message": answer.message}
        return [error, failed]

    def _changes(self, output: RequestOutput) -> list[Change]:
        logprobs: list[ChosenTokenLogprob] = []
        if output.logprobs is not None:
            logprobs = chosen_logprobs(
                self._texts, lambda _, text: text, output.token_ids, output.logprobs
            )
        return self._blocks.read(output, logprobs)

    def _status_of(self, change: Change) -> Status:
        """Return the status of a closed block: incomplete if the answer ends within it."""
        is_last = self._answer.finish_reason is not None and change.block is self._blocks.blocks[-1]
        return self._end_status if is_last else "completed"

    @property
    def _end_status(self) -> Status:
        is_cut = self._answer.finish_reason == FinishReason.LENGTH
        return "incomplete" if is_cut else "completed"

    def _numbered(self, event: Event) -> Event:
        kind, number = event.pop("type"), self._num_events
        self._num_events += 1
        return {"type": kind, "sequence_number": number, **event}

    def _lifecycle(self, kind: str, status: Status) -> Event:
        return self._numbered({"type": kind, "response": self._response(status)})

    def _items(self, status: Status) -> list[OutputItem]:
        blocks = self._blocks.blocks
        if not blocks:
            return []
        items = [self._output.item(block, "completed") for block in blocks[:-1]]
        last: Status = "completed" if status == "completed" else "incomplete"
        return [*items, self._output.item(blocks[-1], last)]

    def _response(self, status: Status) -> ResponseObject:
        has_ended = status in ("completed", "incomplete")
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": _CUT if status == "incomplete" else None,
            "model": self._model,
            "output": self._items(status),
            "usage": self._usage() if has_ended else None,
            **repeated(self._body, self._job.sampling),
        }

    def _usage(self) -> ResponseUsage:
        counts = usage([self._answer], 1)
        num_prompt_tokens = counts["prompt_tokens"]
        num_cached = counts["prompt_tokens_details"]["cached_tokens"]
        num_reasoning = counts["completion_tokens_details"]["reasoning_tokens"]
        return {
            "input_tokens": num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": num_cached,
                "cache_write_tokens": num_prompt_tokens - num_cached,
            },
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": num_reasoning},
            "total_tokens": counts["total_tokens"],
            "speculation": counts["speculation"],
        }


def repeated(body: ResponsesBody, sampling: SamplingParams) -> RepeatedParameters:
    """Return the parameters of a request, with defaults for missing ones."""
    choice = body.tool_choice or "auto"
    reasoning = body.reasoning or ReasoningOptions()
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": _text(body.text or TextOptions()),
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "tools": [_repeated(tool) for tool in body.tools or () if not isinstance(tool, OtherTool)],
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "truncation": "disabled",
        "previous_response_id": None,
        "background": False,
        "store": False,
        "service_tier": "default",
    }


def _repeated(tool: ResponsesTool) -> dict[str, Any]:
    """Return a tool as an answer has it: without those of its namespace that are left out."""
    repeated = tool.model_dump()
    if isinstance(tool, NamespaceTool):
        inner = [member for member in tool.tools if not isinstance(member, OtherTool)]
        repeated["tools"] = [member.model_dump() for member in inner]
    return repeated


def _text(options: TextOptions) -> ResponseText:
    text: ResponseText = {"format": options.format or {"type": "text"}}
    if options.verbosity is not None:
        text["verbosity"] = options.verbosity
    return text
