"""The page at /, which shows speculation: static files of this package."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from diffuspec.serve.openai.errors import HttpError

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_playground(app: FastAPI) -> None:
    """Serve the page at / and its parts below /playground. They need no API key; /v1 does."""
    parts = _read_parts()

    async def page(request: Request) -> Response:
        """Show the playground."""
        return _respond("index.html", parts["index.html"], request)

    async def part(name: str, request: Request) -> Response:
        """Return a part of the playground's page."""
        if name not in parts:
            raise HttpError(404, "no such file", "not_found")
        return _respond(name, parts[name], request)

    app.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/playground/{name}", part, methods=["GET"], include_in_schema=False)


def _read_parts() -> dict[str, bytes]:
    directory = files("diffuspec.serve").joinpath("playground")
    return {
        file.name: file.read_bytes()
        for file in directory.iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }


def _respond(name: str, content: bytes, request: Request) -> Response:
    """Return a file, or 304 to a client that has it."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"etag": tag, "cache-control": "no-cache", "content-security-policy": _POLICY}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)
