"""A client of a service at the level of bytes, which can break every rule of HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

TEXT = "/v1/completions"
CLOSED = "connection closed"
MAX_WAIT_SECONDS = 180.0


class Target:
    """The service, as one client sees it: with its API key, or without one."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        self.url = url
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80
        self.api_key = api_key
        self._keyed = {} if api_key is None else {"authorization": f"Bearer {api_key}"}

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx2.AsyncClient]:
        """Enter with an ordinary client, which keeps to the rules."""
        async with httpx2.AsyncClient(
            base_url=self.url, headers=self._keyed, timeout=MAX_WAIT_SECONDS, trust_env=False
        ) as client:
            yield client

    def without_key(self) -> Target:
        return Target(self.url)

    async def send(self, pieces: Iterable[bytes], pause_seconds: float = 0.0) -> str:
        """Send pieces on a new connection; return a summary of the answer."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                sending = asyncio.ensure_future(_write(writer, pieces, pause_seconds))
                answer = await _read_answer(reader)
                sending.cancel()
                await asyncio.wait([sending])
                return answer
        except TimeoutError:
            return f"open after {MAX_WAIT_SECONDS:.0f} s"
        except OSError:
            return CLOSED
        finally:
            await close(writer)

    async def post(self, path: str, body: bytes, **headers: str) -> str:
        return await self.send([self.head(path, len(body), **headers), body])

    async def post_json(self, path: str, body: Mapping[str, Any]) -> str:
        """Return a summary of the answer, which may be large."""
        async with self.client() as client:
            try:
                return summary(await client.post(path, json=body))
            except httpx2.HTTPError:
                return CLOSED

    def head(self, path: str, length: int | None, method: str = "POST", **headers: str) -> bytes:
        """Return the head of a request; length None: the body is chunked."""
        size = {"transfer-encoding": "chunked"} if length is None else {"content-length": length}
        host = f"{self.host}:{self.port}"
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        base = {"host": host, "content-type": "application/json"}
        lines = [f"{name}: {value}" for name, value in (base | self._keyed | size | more).items()]
        return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode()

    async def leave(self, *pieces: bytes, num_events: int = 0) -> None:
        """Send pieces, read some events of the answer, and abort the connection."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        for piece in pieces:
            writer.write(piece)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                await writer.drain()
                for _ in range(num_events):
                    await reader.readuntil(b"\n\n")
        await close(writer)

    async def until_idle(self) -> str:
        """Wait until no request runs; return the number of requests that run at the end."""
        running: int | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MAX_WAIT_SECONDS):
                while (running := await self._num_running()) != 0:
                    await asyncio.sleep(0.2)
        return f"{running} requests run afterwards"

    async def _num_running(self) -> int | None:
        """Return the number of running requests according to /ready; None if it does not say."""
        async with self.client() as client:
            with contextlib.suppress(httpx2.HTTPError, ValueError, KeyError):
                status = (await client.get("/ready")).json()
                return int(status["running"]) + int(status["waiting"])
        return None


def summary(reply: httpx2.Response) -> str:
    """Return the status of a reply, and the code or parameter of its error."""
    return _summary(str(reply.status_code), reply.content)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection at once, discarding unsent data."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _write(writer: asyncio.StreamWriter, pieces: Iterable[bytes], pause: float) -> None:
    with contextlib.suppress(OSError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)


async def _read_answer(reader: asyncio.StreamReader) -> str:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return CLOSED
    status = head.split(" ", 2)[1]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            return _summary(status, await reader.read(4096))
    return status


def _summary(status: str, body: bytes) -> str:
    if status == "200":
        return status
    with contextlib.suppress(ValueError):
        error = json.loads(body[body.find(b"{") : body.rfind(b"}") + 1])["error"]
        return " ".join(filter(None, [status, error.get("code") or error.get("param")]))
    return status
