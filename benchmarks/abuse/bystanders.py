"""Other clients of a service that is attacked: what they ask, and how long they wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import httpx2

from benchmarks.abuse.target import TEXT, Target, summary

_PAUSE_SECONDS = 0.05  # between two requests of a client
_NUMBERS = itertools.count()  # make each form and prompt a new one, in all runs of a process


class Request(StrEnum):
    """The kinds of requests that bystanders repeat."""

    PLAIN = "plain"  # four tokens
    COUNT = "count"  # the tokens of a short text
    FORM = "new form"  # an answer in a form that the service has not tried


@dataclass(slots=True)
class Waits:
    """The longest wait for each kind of request, in seconds, and what failed."""

    longest: dict[Request, float] = field(default_factory=dict)
    num_answered: dict[Request, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, request: Request, seconds: float) -> None:
        self.longest[request] = max(seconds, self.longest.get(request, 0.0))
        self.num_answered[request] = self.num_answered.get(request, 0) + 1

    def merge(self, other: Waits) -> None:
        for request, seconds in other.longest.items():
            self.longest[request] = max(seconds, self.longest.get(request, 0.0))
            number = self.num_answered.get(request, 0) + other.num_answered[request]
            self.num_answered[request] = number
        self.failures += other.failures


@contextlib.asynccontextmanager
async def bystanders(target: Target, *, has_forms: bool = True) -> AsyncIterator[Waits]:
    """Ask as others do while the context is open; at its end, wait for the last answers.

    has_forms: the service can compile forms of answers.
    """
    waits, is_over = Waits(), asyncio.Event()
    async with target.client() as client, asyncio.TaskGroup() as group:
        for request in Request:
            if has_forms or request is not Request.FORM:
                group.create_task(_ask_always(client, request, waits, is_over))
        try:
            yield waits
        finally:
            is_over.set()


async def _ask_always(
    client: httpx2.AsyncClient, request: Request, waits: Waits, is_over: asyncio.Event
) -> None:
    path, body = _REQUESTS[request]
    while not is_over.is_set():
        content, began = json.dumps(body(next(_NUMBERS))), time.monotonic()
        try:
            reply = await client.post(path, content=content, headers=_JSON)
        except httpx2.HTTPError as error:
            waits.failures.append(f"{request}: {error!r}")
        else:
            waits.add(request, time.monotonic() - began)
            if reply.status_code != 200:
                waits.failures.append(f"{request}: {summary(reply)}")
        await asyncio.sleep(_PAUSE_SECONDS)


def _plain(number: int) -> Mapping[str, Any]:
    return {"prompt": f"{number} and", "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def _count(number: int) -> Mapping[str, Any]:
    return {"prompt": f"The number {number} is counted."}


def _form(number: int) -> Mapping[str, Any]:
    name = f"field_{number}"
    properties = {name: {"type": "integer", "minimum": 0, "maximum": number + 9}}
    schema = {"type": "object", "properties": properties, "required": [name]}
    return {"prompt": "a", "max_tokens": 4, "temperature": 0, "guided_json": schema}


_JSON = {"content-type": "application/json"}
_REQUESTS: Mapping[Request, tuple[str, Callable[[int], Mapping[str, Any]]]] = {
    Request.PLAIN: (TEXT, _plain),
    Request.COUNT: ("/tokenize", _count),
    Request.FORM: (TEXT, _form),
}
