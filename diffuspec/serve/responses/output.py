"""Output items of /v1/responses, and the events while they grow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from diffuspec.serve.openai.reading.blocks import Block, Change
from diffuspec.serve.openai.tool_calls import call_id
from diffuspec.serve.responses.objects import OutputCall, OutputItem, OutputPart, Status

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
_TEXTS = {"reasoning": "response.reasoning_text", "text": "response.output_text"}
_ARGUMENTS = "response.function_call_arguments"

Event: TypeAlias = dict[str, Any]  # an event without its sequence_number


class Output:
    """Describes the blocks of one answer. `id`: that of the request."""

    def __init__(
        self, id: str, namespaces: Mapping[str, tuple[str, str]], *, has_short_ids: bool
    ) -> None:
        """namespaces: namespace and name of the functions that have one, by their flat name."""
        self._id = id
        self._namespaces = namespaces
        self._has_short_ids = has_short_ids

    def item(self, block: Block, status: Status, *, is_new: bool = False) -> OutputItem:
        """Return a block as an item. `is_new`: omit its content."""
        item_id = self._item_id(block)
        if block.kind == "call":
            namespace, name = self._namespaces.get(block.name, (None, block.name))
            called: OutputCall = {
                "type": "function_call",
                "id": item_id,
                "status": status,
                "call_id": call_id(f"{self._id}-{block.place}", is_short=self._has_short_ids),
                "name": name,
                "arguments": "" if is_new else block.text,
            }
            return called if namespace is None else {**called, "namespace": namespace}
        parts: list[Any] = [] if is_new else [self._part(block)]
        if block.kind == "reasoning":
            return {
                "type": "reasoning",
                "id": item_id,
                "status": status,
                "summary": [],
                "content": parts,
                "encrypted_content": None,
            }
        return {
            "type": "message",
            "id": item_id,
            "status": status,
            "role": "assistant",
            "content": parts,
        }

    def events(self, change: Change, status: Status) -> list[Event]:
        """Return the events of a change. `status`: that of a closed block."""
        block = change.block
        at: Event = {"output_index": block.place, "item_id": self._item_id(block)}
        if block.kind != "call":
            at["content_index"] = 0
        if change.what == "open":
            return self._opened(block, at)
        if change.what == "more":
            name = _TEXTS.get(block.kind, _ARGUMENTS)
            event = {"type": f"{name}.delta", **at, "delta": change.text}
            if block.kind == "text":
                event["logprobs"] = list(change.logprobs)
            return [event]
        return self._closed(block, at, status)

    def _opened(self, block: Block, at: Event) -> list[Event]:
        item = self.item(block, "in_progress", is_new=True)
        place = {"output_index": block.place}
        added: Event = {"type": "response.output_item.added", **place, "item": item}
        if block.kind == "call":
            return [added]
        part = self._part(Block(block.place, block.kind))
        return [added, {"type": "response.content_part.added", **at, "part": part}]

    def _closed(self, block: Block, at: Event, status: Status) -> list[Event]:
        item, place = self.item(block, status), {"output_index": block.place}
        done: Event = {"type": "response.output_item.done", **place, "item": item}
        if item["type"] == "function_call":
            event = {**at, "name": item["name"], "arguments": block.text}
            return [{"type": f"{_ARGUMENTS}.done", **event}, done]
        text: Event = {"type": f"{_TEXTS[block.kind]}.done", **at, "text": block.text}
        if block.kind == "text":
            text["logprobs"] = block.logprobs
        part = {"type": "response.content_part.done", **at, "part": self._part(block)}
        return [text, part, done]

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._id}_{block.place}"

    def _part(self, block: Block) -> OutputPart:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": block.text}
        logprobs = list(block.logprobs)
        return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs}
