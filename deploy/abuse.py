"""Sends a service requests that it must refuse; shows its answers and their cost in memory.

    python -m deploy.abuse http://127.0.0.1:8000

Works on `diffuspec serve` and on the application of Ray Serve, without API keys. Memory is that of
the service's processes on this machine: the process that listens on the port and its children, or
all processes of the Ray node. Waits for slow clients as long as the service allows them, about a
minute by default.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table

from deploy.processes import service_processes
from diffuspec.command import Command
from diffuspec.core.errors import ConfigError

TEXT = "/v1/completions"
_GRAMMAR = "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(60)) + '\nT60: "a"'
_LONG = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "temperature": 1, "seed": 1}
_TIMES = 20  # times that a client disconnects in each phase
_MAX_WAIT_SECONDS = 120.0
_MIB = 2**20
_CLOSED = "connection closed"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """The service's answer to one kind of abuse."""

    name: str
    answer: str  # status and code or parameter, or how the connection ended


class Target:
    """A connection to the service, at the level of bytes."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 80

    async def send(self, pieces: Iterable[bytes], pause_seconds: float = 0.0) -> str:
        """Send pieces on a new connection; return a summary of the answer."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            async with asyncio.timeout(_MAX_WAIT_SECONDS):
                sending = asyncio.ensure_future(_write(writer, pieces, pause_seconds))
                answer = await _read_answer(reader)
                sending.cancel()
                await asyncio.wait([sending])
                return answer
        except TimeoutError:
            return f"open after {_MAX_WAIT_SECONDS:.0f} s"
        except OSError:
            return _CLOSED
        finally:
            await _close(writer)

    async def post(self, path: str, body: bytes, **headers: str) -> str:
        return await self.send([self.head(path, len(body), **headers), body])

    def head(self, path: str, length: int | None, **headers: str) -> bytes:
        """Return the head of a POST request; length None: the body is chunked."""
        size = {"transfer-encoding": "chunked"} if length is None else {"content-length": length}
        host = f"{self.host}:{self.port}"
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"host": host, "content-type": "application/json", **size, **more}
        lines = [f"{name}: {value}" for name, value in given.items()]
        return "\r\n".join([f"POST {path} HTTP/1.1", *lines, "", ""]).encode()

    async def leave(self, *pieces: bytes, num_events: int = 0) -> None:
        """Send pieces, read some events of the answer, and abort the connection."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        for piece in pieces:
            writer.write(piece)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_MAX_WAIT_SECONDS):
                await writer.drain()
                for _ in range(num_events):
                    await reader.readuntil(b"\n\n")
        await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
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
        return _CLOSED
    status = head.split(" ", 2)[1]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            body = await reader.read(4096)
            found = body[body.find(b"{") : body.rfind(b"}") + 1]
            error = json.loads(found).get("error", {}) if found else {}
            return " ".join(filter(None, [status, error.get("code") or error.get("param")]))
    return status


def bodies() -> dict[str, dict[str, Any]]:
    """Return bodies of text completions that ask for too much, keyed by what is wrong with them."""
    return {
        "200,000 stop strings": {"prompt": "a", "stop": ["a"] * 200_000},
        "n of 10^9": {"prompt": "a", "n": 10**9},
        "max_tokens of 10^9": {"prompt": "a", "max_tokens": 10**9},
        "a prompt of 1,000,000 characters": {"prompt": "a" * 1_000_000},
        "200,000 token ids": {"prompt": [1] * 200_000},
        "50,000 biases of logits": {
            "prompt": "a",
            "logit_bias": {str(n): 1 for n in range(50_000)},
        },
        "100,000 unknown keys": {"prompt": "a"} | {f"k{n}": 0 for n in range(100_000)},
    }


def forms() -> dict[str, dict[str, Any]]:
    """Return bodies whose response formats would cost too much to compile."""
    nested: Any = {"type": "string"}
    for _ in range(300):
        nested = {"type": "array", "items": nested}
    return {
        "a grammar that doubles 60 times": {"prompt": "a", "guided_grammar": _GRAMMAR},
        "a regex of 10^9 characters": {"prompt": "a", "guided_regex": "((a{1000}){1000}){1000}"},
        "a JSON schema 300 levels deep": {"prompt": "a", "guided_json": nested},
    }


def requests(target: Target) -> dict[str, Callable[[], Awaitable[str]]]:
    """Return the kinds of HTTP abuse by name."""
    head, deep = target.head, b'{"prompt": ' + b"[" * 200_000
    large, block = 64 * _MIB, b" " * 65_536
    chunk = b"10000\r\n" + block + b"\r\n"
    stops = json.dumps({"prompt": "a", "stop": ["a"] * 10**6}).encode()
    small = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    many = {f"x-{number}": "a" * 1000 for number in range(200)}
    return {
        "64 MiB, announced": lambda: target.send([head(TEXT, large), *[block] * 1024]),
        "64 MiB in chunks": lambda: target.send([head(TEXT, None), *[chunk] * 1024]),
        "10^6 stop strings": lambda: target.post(TEXT, stops),
        "200,000 levels of JSON": lambda: target.post(TEXT, deep),
        "another site's Host": lambda: target.post(TEXT, small, host="evil.example"),
        "a request id of 10,000 letters": lambda: target.post(
            TEXT, small, x_request_id="a" * 10_000
        ),
        "headers of 200 KiB": lambda: target.post(TEXT, small, **many),
        "a time-out of a client's own": lambda: target.post(
            TEXT, small, x_request_timeout_seconds="0.000001"
        ),
        "a body as text/plain": lambda: target.post(TEXT, small, content_type="text/plain"),
        "headers, a byte in 2 s": lambda: target.send([bytes([b]) for b in head(TEXT, 9)], 2.0),
        "a body, a byte in 2 s": lambda: target.send([head(TEXT, 999), *[b" "] * 999], 2.0),
    }


async def leave_everywhere(target: Target) -> str:
    """Disconnect in every phase of a request; return the number of requests still running then."""
    body = json.dumps(_LONG | {"stream": True}).encode()
    whole = target.head(TEXT, len(body)) + body
    phases: list[tuple[bytes, int]] = [
        (b"", 0), (whole[:40], 0), (whole[:-20], 0), (whole, 0), (whole, 1), (whole, 4),
    ]  # fmt: skip
    for sent, num_events in phases:
        await asyncio.gather(*(target.leave(sent, num_events=num_events) for _ in range(_TIMES)))
    return await _until_idle(target)


async def stop_reading(target: Target) -> str:
    """Request a long stream and read none of it; return the outcome of the request."""
    body = json.dumps(_LONG | {"stream": True, "n": 8, "logprobs": 20}).encode()
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=1024)
    writer.write(target.head(TEXT, len(body)) + body)
    await reader.read(256)
    found = await _until_idle(target)
    await _close(writer)
    return found


async def _until_idle(target: Target) -> str:
    """Wait until no request runs; return the number of requests that run at the end of the wait."""
    running: int | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MAX_WAIT_SECONDS):
            while (running := await _num_running(target)) != 0:
                await asyncio.sleep(0.2)
    return f"{running} requests run afterwards"


async def _num_running(target: Target) -> int | None:
    """Return the number of running requests according to /ready; None if it does not say."""
    reader, writer = await asyncio.open_connection(target.host, target.port)
    host = f"{target.host}:{target.port}"
    writer.write(f"GET /ready HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
    body = (await reader.read()).partition(b"\r\n\r\n")[2]
    await _close(writer)
    with contextlib.suppress(ValueError):
        found = json.loads(body[body.find(b"{") : body.rfind(b"}") + 1])
        if "running" in found:
            return int(found["running"]) + int(found["waiting"])
    return None


async def abuse(url: str, *, has_forms: bool = True, is_patient: bool = True) -> list[Finding]:
    """Try every kind of abuse on a service, one after the other; slow clients all at once.

    has_forms: the service can compile response formats. is_patient: also try abuse that takes long
    to be dropped.
    """
    target, found = Target(url), []
    asked = bodies() | (forms() if has_forms else {})
    for name, body in asked.items():
        found.append(Finding(name, await target.post(TEXT, json.dumps(body).encode())))
    tries = requests(target)
    slow = [name for name in tries if "2 s" in name]
    for name in [name for name in tries if name not in slow]:
        found.append(Finding(name, await tries[name]()))
    answers = await asyncio.gather(*(tries[name]() for name in slow))
    found += [Finding(name, answer) for name, answer in zip(slow, answers, strict=True)]
    found.append(Finding("leave in every phase, 120 times", await leave_everywhere(target)))
    if is_patient:
        found.append(Finding("a stream that is not read", await stop_reading(target)))
    return found


def memory(port: int) -> float:
    """Return the resident MiB of the processes of the service that listens on a port."""
    return float(sum(one.memory_info().rss for one in service_processes(port))) / _MIB


@app.command(cls=Command)
def main(url: Annotated[str, typer.Argument(help="URL of the service.")]) -> None:
    """Send a service requests that it must refuse, and print a table of its answers."""
    port = Target(url).port
    try:  # the first request allocates memory
        asyncio.run(Target(url).post(TEXT, b'{"prompt": "a"}'))
    except OSError as error:
        raise ConfigError(f"no service answers at {url}: {error}") from error
    before = memory(port)
    findings = asyncio.run(abuse(url))
    table = Table("sent", "came back")
    for finding in findings:
        table.add_row(finding.name, finding.answer)
    Console().print(table)
    typer.echo(f"memory: {before:.0f} MiB before, {memory(port):.0f} MiB after")


if __name__ == "__main__":
    app()
