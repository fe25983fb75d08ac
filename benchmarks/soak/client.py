"""Clients that send one request after the other, and the outcome of each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

import httpx2

from benchmarks.soak.answer import Answer
from benchmarks.soak.mixture import Kind, Request
from benchmarks.soak.oracle import Oracle
from diffuspec.bench.http_client import HttpClient, RefusedError
from diffuspec.core.errors import WorkerError

MAX_SECONDS = 120.0  # for one request
_SLOW_SECONDS = 0.02  # between two chunks that a slow client reads
_SLOW_BUFFER_BYTES = 16_384
_REFUSALS = (400, 413, 422)


class End(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"  # with the right answer
    LEFT = "left"  # closed by its client, after the beginning of the right answer
    REFUSED = "refused"  # rightly
    WRONG = "wrong"  # another answer than plain decoding's, or a bad request answered
    BROKEN = "broken"  # an error, or no connection
    OVERDUE = "overdue"  # not ended after MAX_SECONDS


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request. Times are time.monotonic()."""

    kind: Kind
    name: str
    began: float
    ended: float
    end: End
    reason: str = ""  # why it failed; "": it did not

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Client:
    """Sends requests and compares the answers. May send several at a time."""

    def __init__(self, http: HttpClient, slow_http: HttpClient, oracle: Oracle) -> None:
        """`slow_http`: has small buffers."""
        self._http, self._slow_http, self._oracle = http, slow_http, oracle

    async def send(self, request: Request) -> Outcome:
        """Send a request; return its outcome after MAX_SECONDS at the latest."""
        began, answer = time.monotonic(), Answer()
        try:
            async with asyncio.timeout(MAX_SECONDS):
                end, reason = await self._send(request, answer)
        except TimeoutError:
            end, reason = End.OVERDUE, f"not ended after {MAX_SECONDS:.0f} s"
        return Outcome(request.kind, request.name, began, time.monotonic(), end, reason)

    async def _send(self, request: Request, answer: Answer) -> tuple[End, str]:
        """Return the end and the reason of a failure; collect the answer in `answer`."""
        try:
            is_whole = await self._receive(request, answer)
        except RefusedError as error:
            is_refusal = request.kind is Kind.BAD and error.status in _REFUSALS
            return (End.REFUSED, "") if is_refusal else (End.BROKEN, str(error))
        except WorkerError as error:
            if answer.choices and (
                problem := self._oracle.problem(request, answer, is_whole=False)
            ):
                return End.WRONG, f"{problem}, then {error}"
            return End.BROKEN, str(error)
        if request.kind is Kind.BAD:
            return End.WRONG, f"{request.name} was answered"
        if problem := self._oracle.problem(request, answer, is_whole=is_whole):
            return End.WRONG, problem
        return (End.ANSWERED if is_whole else End.LEFT), ""

    async def _receive(self, request: Request, answer: Answer) -> bool:
        """Collect the answer in `answer`. Return False if the client leaves before the end."""
        if not request.is_streamed:
            answer.add((await self._http.answer(request.body))["choices"])
            return True
        is_slow, num_chunks = request.kind is Kind.SLOW, 0
        http = self._slow_http if is_slow else self._http
        async with contextlib.aclosing(http.chunks(request.body)) as chunks:
            if request.left_after == 0:
                await _begun(chunks)
                return False
            async for chunk in chunks:
                answer.add(chunk["choices"])
                num_chunks += 1
                if num_chunks == request.left_after:
                    return False
                if is_slow:
                    await asyncio.sleep(_SLOW_SECONDS)
        return True


async def _begun(chunks: AsyncIterator[object]) -> None:
    """Return soon after the request has been sent, perhaps before anything came."""
    with contextlib.suppress(TimeoutError, StopAsyncIteration):
        async with asyncio.timeout(_SLOW_SECONDS):
            await anext(chunks)


@contextlib.asynccontextmanager
async def connected(url: str, oracle: Oracle) -> AsyncIterator[Client]:
    """Enter with a client of a service; its connections are closed at the end."""
    options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)]
    slow = httpx2.AsyncHTTPTransport(socket_options=options)
    async with HttpClient(url) as http, HttpClient(url, transport=slow) as slow_http:
        yield Client(http, slow_http, oracle)
