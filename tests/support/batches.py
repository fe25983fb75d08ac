"""A service that answers a batch without a model, and what the batch's files hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.batches.results import Reply


class Echo:
    """Answers each chat with its last message, raises its next failure instead if it has any."""

    def __init__(self, failures: Sequence[Exception] = (), concurrency: int = 3) -> None:
        self.concurrency = concurrency
        self.failures = list(failures)
        self.bodies: list[Mapping[str, Any]] = []
        self.is_there = True
        self.num_in_flight = 0
        self.most_in_flight = 0

    async def ask(self, url: str, body: Mapping[str, Any], request_id: str) -> Reply:
        self.num_in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.num_in_flight)
        try:
            await asyncio.sleep(0)
            return await self._answer(body, request_id)
        finally:
            self.num_in_flight -= 1

    async def is_up(self) -> bool:
        return self.is_there

    async def _answer(self, body: Mapping[str, Any], request_id: str) -> Reply:
        if self.failures:
            raise self.failures.pop(0)
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        if text == "wrong":
            return Reply(400, request_id, {"error": {"message": "wrong", "param": "messages"}})
        message = {"role": "assistant", "content": f"<{text}>"}
        usage = {"prompt_tokens": 5, "completion_tokens": 6, "speculation": {"steps": 2}}
        return Reply(200, request_id, {"choices": [{"message": message}], "usage": usage})


class Stuck(Echo):
    """Answers some rows and hangs at the next one."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.num_rows = num_rows
        self.hangs = asyncio.Event()

    async def _answer(self, body: Mapping[str, Any], request_id: str) -> Reply:
        if len(self.bodies) == self.num_rows:
            self.hangs.set()
            await asyncio.Event().wait()
        return await super()._answer(body, request_id)


def chat(text: str, **keys: Any) -> dict[str, Any]:
    """Return a plain row."""
    return {"messages": [{"role": "user", "content": text}], **keys}


def results_in(path: Path) -> list[dict[str, Any]]:
    """Return all results, each of them whole, in the order of the input."""
    content = path.read_text(encoding="utf-8")
    assert not content or content.endswith("\n")
    results = [json.loads(line) for line in content.splitlines()]
    return sorted(results, key=lambda result: int(result["id"].split("_")[2]))


def texts(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the text of every answer."""
    choices = [result["response"]["body"]["choices"][0] for result in results]
    return [choice["message"]["content"] for choice in choices]
