"""The body of a request, counted while it arrives."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import ClientDisconnect, Request

from diffuspec.serve.http.connection import ClientGoneError
from diffuspec.serve.openai.errors import BadRequestError, HttpError

MAX_DEPTH = 64  # of JSON; schemas of tools are nested too


async def read_json(request: Request, max_bytes: int, max_seconds: float) -> Any:
    """Return the body as plain data.

    Raises HttpError for one that is too large (413), too slow (408) or not JSON by its type (415),
    BadRequestError for one that is no JSON, ClientGoneError.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "content-type must be application/json", "unsupported_media_type")
    try:
        async with asyncio.timeout(max_seconds):
            content = await _read(request, max_bytes)
    except TimeoutError:
        raise HttpError(
            408, f"the body did not arrive within {max_seconds:g} s", "body_timeout",
            headers={"connection": "close"},
        ) from None  # fmt: skip
    except ClientDisconnect as error:
        raise ClientGoneError("the client left before its body was read") from error
    return parse_json(content)


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        _refuse_size(max_bytes)
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > max_bytes:
            _refuse_size(max_bytes)
    return bytes(content)


def _refuse_size(max_bytes: int) -> NoReturn:
    raise HttpError(
        413, f"the body must have at most {max_bytes} bytes", "body_too_large",
        headers={"connection": "close"},
    )  # fmt: skip


def parse_json(content: bytes | str) -> Any:
    """Return plain data. Raises BadRequestError: no JSON, nested too deeply, NaN, huge numbers."""
    try:
        if isinstance(content, bytes):
            content = content.decode("utf-8")
        if _depth(content) > MAX_DEPTH:
            raise BadRequestError(f"the JSON is nested more than {MAX_DEPTH} deep")
        return json.loads(content, parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise BadRequestError("the body must be UTF-8") from None
    except (ValueError, RecursionError):
        raise BadRequestError("the body is not valid JSON") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _depth(text: str) -> int:
    """Return how many brackets are open at most, those inside of strings left out."""
    depth = deepest = 0
    for place, part in enumerate(text.replace("\\\\", "").replace('\\"', "").split('"')):
        if place % 2:
            continue
        for letter in part:
            if letter in "[{":
                depth += 1
                deepest = max(deepest, depth)
            elif letter in "]}":
                depth -= 1
    return deepest
