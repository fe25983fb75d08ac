"""Reads the body of a request, counting bytes as they arrive."""

from __future__ import annotations

import asyncio
import codecs
import math
import re
from typing import Any, NoReturn

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from diffuspec.serve.http.events import ClientGoneError
from diffuspec.serve.openai.errors import BadRequestError, HttpError

# numbers that may be infinite; other text never matches
_LARGE = re.compile(rb"[eE]\+?\d{3}|\d{309}")


async def read_json(request: Request, max_bytes: int, max_seconds: float) -> Any:
    """Return the body as plain data; its size is then `request.state.num_body_bytes`.

    Raises HttpError if it is too large (413), too slow (408), or by its headers compressed or not
    JSON (415), BadRequestError for invalid JSON, and ClientGoneError.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpError(415, "content-type must be application/json", "unsupported_media_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "the body must not be compressed", "unsupported_content_encoding")
    try:
        async with asyncio.timeout(max_seconds):
            content = await _read(request, max_bytes)
    except TimeoutError:
        raise HttpError(
            408, f"the body did not arrive within {max_seconds:g} s", "body_timeout"
        ) from None
    except ClientDisconnect as error:
        raise ClientGoneError("the client left before its body was read") from error
    request.state.num_body_bytes = len(content)
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
    raise HttpError(413, f"the body must have at most {max_bytes} bytes", "body_too_large")


def parse_json(content: bytes) -> Any:
    """Return plain data; a byte order mark is skipped.

    Raises BadRequestError, with the position, for invalid JSON or UTF-8, deep nesting and NaN.
    """
    try:
        data = from_json(content.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:  # "expected value at line 1 column 7": quotes nothing of the body
        raise BadRequestError(f"the body is not valid JSON: {error}") from None
    if _LARGE.search(content) and not _is_finite(data):
        raise BadRequestError("the body is not valid JSON: a number is beyond the range of floats")
    return data


def _is_finite(data: Any) -> bool:
    """Return whether no number has become infinite, as 1e999 does."""
    if isinstance(data, float):
        return math.isfinite(data)
    if isinstance(data, dict):
        return all(map(_is_finite, data.values()))
    return not isinstance(data, list) or all(map(_is_finite, data))
