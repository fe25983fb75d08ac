"""Requests that ask for too much or break the rules, each of which must be refused at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.abuse.attack import Answers, Attack, Clients
from benchmarks.abuse.target import CLOSED, TEXT, Target

_MIB = 2**20
_SLOW_SECONDS = 2.0  # between two bytes
_TOO_LONG = "400 context_length_exceeded"


def refusals() -> Sequence[Attack]:
    """Return an attack for each kind of request."""
    return [*_bodies(), *_requests()]


def _bodies() -> Iterable[Attack]:
    """Bodies of text completions that ask for too much."""
    biases = {str(n): 1 for n in range(50_000)}
    unknown = {f"k{n}": 0 for n in range(100_000)}
    return [
        _body("200,000 stop strings", "400 stop", {"stop": ["a"] * 200_000}),
        _body("n of 10^9", "400 n", {"n": 10**9}),
        _body("max_tokens of 10^9", _TOO_LONG, {"max_tokens": 10**9}),
        _body("a prompt of 1,000,000 characters", _TOO_LONG, {"prompt": "a" * 1_000_000}),
        _body("200,000 token ids", _TOO_LONG, {"prompt": [1] * 200_000}),
        _body("50,000 biases of logits", "400 logit_bias", {"logit_bias": biases}),
        _body("100,000 unknown keys", "413 body_too_large", unknown),
        _body("10^6 stop strings", "413 body_too_large", {"stop": ["a"] * 10**6}),
    ]


def _body(name: str, expected: str, body: Mapping[str, Any]) -> Attack:
    async def send(clients: Clients, number: int) -> Answers:
        content = json.dumps({"prompt": "a", **body}).encode()
        return [await clients.attacker.post(TEXT, content)]

    return Attack(name, expected, send)


def _requests() -> Iterable[Attack]:
    """Requests that are too large, too deep, too slow, or not what this service takes."""
    large, block = 64 * _MIB, b" " * 65_536
    chunk = b"10000\r\n" + block + b"\r\n"
    deep = b'{"prompt": ' + b"[" * 200_000
    small = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    many = {f"x_{number}": "a" * 1000 for number in range(200)}
    timeout = {"x_request_timeout_seconds": "0.000001"}

    def posted(**headers: str) -> Callable[[Target], Iterable[bytes]]:
        return lambda target: [target.head(TEXT, len(small), **headers), small]

    return [
        _pieces(
            "64 MiB, announced",
            "413 body_too_large",
            lambda target: [target.head(TEXT, large), *[block] * 1024],
        ),
        _pieces(
            "64 MiB in chunks",
            "413 body_too_large",
            lambda target: [target.head(TEXT, None), *[chunk] * 1024],
        ),
        _pieces(
            "200,000 levels of JSON",
            "400( .*)?",
            lambda target: [target.head(TEXT, len(deep)), deep],
        ),
        _pieces("another site's Host", "403 .*|200", posted(host="evil.example")),
        _pieces("a request id of 10,000 letters", "400( .*)?", posted(x_request_id="a" * 10_000)),
        _pieces("headers of 200 KiB", f"{CLOSED}|4(00|31).*", posted(**many)),
        _pieces("a time-out of a client's own", "200", posted(**timeout)),
        _pieces("a body as text/plain", "415 .*", posted(content_type="text/plain")),
        _pieces(
            "headers, a byte in 2 s",
            f"{CLOSED}|408.*",
            lambda target: [bytes([byte]) for byte in target.head(TEXT, 9)],
            _SLOW_SECONDS,
        ),
        _pieces(
            "a body, a byte in 2 s",
            "408.*",
            lambda target: [target.head(TEXT, 999), *[b" "] * 999],
            _SLOW_SECONDS,
        ),
    ]


def _pieces(
    name: str,
    expected: str,
    pieces: Callable[[Target], Iterable[bytes]],
    pause_seconds: float = 0.0,
) -> Attack:
    async def send(clients: Clients, number: int) -> Answers:
        target = clients.attacker
        return [await target.send(pieces(target), pause_seconds)]

    return Attack(name, expected, send, is_slow=bool(pause_seconds))
