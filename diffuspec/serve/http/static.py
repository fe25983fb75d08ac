"""Files that pages in browsers are made of."""

from __future__ import annotations

import hashlib

from starlette.requests import Request
from starlette.responses import Response

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def is_part(name: str) -> bool:
    """Whether a file may be a part of a page."""
    return name.rpartition(".")[2] in _TYPES


def respond_with(name: str, content: bytes, request: Request, policy: str) -> Response:
    """Return a file, or 304 to a browser that has it; `policy` is what its page may load."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"etag": tag, "cache-control": "no-cache", "content-security-policy": policy}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
