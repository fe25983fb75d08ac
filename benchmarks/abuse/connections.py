"""Connections that break off, stand still, or smuggle what belongs elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.abuse.attack import Answers, Attack, Clients
from benchmarks.abuse.target import CLOSED, TEXT, Target, close

_LONG: Mapping[str, Any] = {
    "prompt": "a",
    "max_tokens": 400,
    "ignore_eos": True,
    "temperature": 1,
    "seed": 1,
}
_TIMES = 20  # times that a client disconnects in each phase
_NUM_KEPT = 400  # connections that are kept
_KEPT_SECONDS = 90.0  # within which they must be closed
_IDLE = "0 requests run afterwards"


def connection_attacks() -> Sequence[Attack]:
    return [
        Attack("a key in a chunk's trailer", "401 .*", _trailer, needs_keys=True),
        Attack(f"clients leave in 6 phases, {6 * _TIMES} times", _IDLE, _leave_everywhere),
        Attack("a stream that is not read", _IDLE, _stop_reading, is_slow=True),
        Attack(f"a byte after an answer, {_NUM_KEPT} times", CLOSED, _keep, is_slow=True),
    ]


async def _trailer(clients: Clients, number: int) -> Answers:
    """Send a key after the body, where no gateway looks for it."""
    body, target = json.dumps({"prompt": "a", "max_tokens": 1}).encode(), clients.attacker
    key = f"x-api-key: {target.api_key}\r\n".encode()
    chunk = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n"
    head = target.without_key().head(TEXT, None)
    return [await target.send([head, chunk, key + b"\r\n"])]


async def _leave_everywhere(clients: Clients, number: int) -> Answers:
    """Disconnect in every phase of a request."""
    target = clients.attacker
    body = json.dumps({**_LONG, "stream": True}).encode()
    whole = target.head(TEXT, len(body)) + body
    phases: list[tuple[bytes, int]] = [
        (b"", 0), (whole[:40], 0), (whole[:-20], 0), (whole, 0), (whole, 1), (whole, 4),
    ]  # fmt: skip
    for sent, num_events in phases:
        await asyncio.gather(*(target.leave(sent, num_events=num_events) for _ in range(_TIMES)))
    return [await target.until_idle()]


async def _stop_reading(clients: Clients, number: int) -> Answers:
    """Request a long stream and read none of it."""
    target = clients.attacker
    body = json.dumps({**_LONG, "stream": True, "n": 2, "logprobs": 20}).encode()
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=1024)
    writer.write(target.head(TEXT, len(body)) + body)
    await reader.read(256)
    left = await target.until_idle()
    await close(writer)
    return [left]


async def _keep(clients: Clients, number: int) -> Answers:
    """Send a byte after an answered request on connections that are kept, without a key."""
    target = clients.attacker.without_key()
    return await asyncio.gather(*(_kept(target, count % 2 == 0) for count in range(_NUM_KEPT)))


async def _kept(target: Target, has_body: bool) -> str:
    """Ask, and send one of two bytes of a body or the first byte of a next head afterwards."""
    head = target.head("/health", 2 if has_body else 0, "GET")
    reader, writer = await asyncio.open_connection(target.host, target.port)
    try:
        async with asyncio.timeout(_KEPT_SECONDS):
            writer.write(head + b" " * has_body)
            if not has_body:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"\r\n")
            with contextlib.suppress(OSError):
                await reader.read()
            return CLOSED
    except TimeoutError:
        return f"open after {_KEPT_SECONDS:.0f} s"
    except (OSError, asyncio.IncompleteReadError):
        return CLOSED
    finally:
        await close(writer)
