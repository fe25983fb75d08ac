"""What a proxy of Serve takes out of requests, and what it refuses."""

import asyncio
import json
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deploy.proxy import CALLBACK, MAX_BODY_BYTES, MAX_HEADER_BYTES, ProxyGuard, middlewares

LIMIT = 100


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    answer = {"headers": dict(request.headers), "num_bytes": len(await request.body())}
    await JSONResponse(answer)(scope, receive, send)


async def no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def call(
    app: ASGIApp, pieces: list[bytes], headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    raw = [(k.encode(), v.encode("latin-1")) for k, v in (headers or {}).items()]
    sent: list[Message] = []
    waiting = [
        {"type": "http.request", "body": piece, "more_body": index < len(pieces) - 1}
        for index, piece in enumerate(pieces)
    ]

    async def receive() -> Message:
        return waiting.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": raw}
    async with asyncio.timeout(5):
        await ProxyGuard(app, LIMIT)(scope, receive, send)
    assert sent[0]["type"] == "http.response.start"
    return sent[0]["status"], json.loads(b"".join(one.get("body", b"") for one in sent[1:]))


async def sent_by(app: ASGIApp, path: str = "/") -> list[Message]:
    """Return the messages of an answer to a request without a body."""
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    await ProxyGuard(app)({"type": "http", "path": path, "headers": []}, no_body, keep)
    return sent


async def test_headers_that_steer_serve_do_not_reach_it():
    headers = {
        "X-Request-Timeout-Seconds": "0",
        "x-request-disconnect-disabled": "?1",
        "x-session-id": "\xff",
        "serve_multiplexed_model_id": "\xff",
        "x-request-id": "mine",
    }
    status, answer = await call(echo, [b"{}"], headers)
    assert status == 200 and answer["headers"] == {"x-request-id": "mine"}


@pytest.mark.parametrize("wrong", ["a b", "\xff", "x" * 129])
async def test_a_wrong_request_id_does_not_reach_serve(wrong):
    status, answer = await call(echo, [b"{}"], {"x-request-id": wrong})
    assert status == 400 and "x-request-id" in answer["error"]["message"]


async def test_a_response_has_one_request_id():
    async def twice(scope: Scope, receive: Receive, send: Send) -> None:
        response = JSONResponse({})
        response.headers.append("x-request-id", "ours")
        response.headers.append("x-request-id", "serve's")
        await response(scope, receive, send)

    [start, *_] = await sent_by(twice)
    assert Headers(raw=start["headers"]).getlist("x-request-id") == ["ours"]


@pytest.mark.parametrize("pieces", [[b"x" * LIMIT], [b"x" * 50, b"x" * 50], [b""]], ids=len)
async def test_a_body_up_to_the_limit_passes(pieces):
    assert (await call(echo, pieces))[1]["num_bytes"] == sum(map(len, pieces))


@pytest.mark.parametrize("pieces", [[b"x" * 101], [b"x"] * 101, [b"x" * 50] * 9], ids=len)
async def test_a_larger_body_is_refused_as_openai_does(pieces):
    status, answer = await call(echo, pieces)
    assert status == 413
    assert answer["error"]["code"] == "body_too_large" and "100 bytes" in answer["error"]["message"]


async def test_headers_beyond_the_limit_are_refused():
    large = {f"x-{number}": "a" * 1000 for number in range(MAX_HEADER_BYTES // 1000 + 1)}
    status, answer = await call(echo, [b"{}"], large)
    assert status == 431 and answer["error"]["code"] == "headers_too_large"
    large.popitem()
    assert (await call(echo, [b"{}"], large))[0] == 200


def refusing(status: int, routes: str) -> ASGIApp:
    """Return what a proxy of Serve is: it knows routes, and refuses all else with plain text."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        response = PlainTextResponse("Path '/' not found. Ping /-/routes", status)
        if scope["path"] == "/-/routes":
            response = PlainTextResponse(routes, 200 if routes.startswith("{") else 503)
        await response(scope, receive, send)

    return refuse


@pytest.mark.parametrize(
    ("status", "routes", "told", "code"),
    [
        (404, '{"/other": "app"}', 404, "not_found"),
        (404, "{}", 503, "unavailable"),
        (404, "Route table is not populated yet.", 503, "unavailable"),
        (500, '{"/": "app"}', 503, "unavailable"),
        (503, '{"/": "app"}', 503, "unavailable"),
        (408, '{"/": "app"}', 408, "timeout"),
    ],
)
async def test_an_error_of_serve_itself_is_told_as_openai_does(status, routes, told, code):
    found, answer = await call(refusing(status, routes), [b""])
    assert found == told and answer["error"]["code"] == code


async def test_an_error_of_serve_that_passes_says_when_to_try_again():
    [start, *_] = await sent_by(refusing(500, "{}"))
    assert Headers(raw=start["headers"])["retry-after"] == "1"


async def test_proxies_tell_their_health_and_routes_as_serve_does():
    start, body = await sent_by(PlainTextResponse("draining", 503), "/-/healthz")
    assert (start["status"], body["body"]) == (503, b"draining")


async def test_an_error_of_the_application_stays_one():
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await call(fail, [b""])


def test_the_name_that_proxies_are_given_is_this_function():
    module, _, name = CALLBACK.partition(":")
    assert (module, name) == (middlewares.__module__, middlewares.__name__)
    [middleware] = middlewares()
    assert middleware.cls is ProxyGuard and MAX_BODY_BYTES >= 2**20
