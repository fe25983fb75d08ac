"""Pages for browsers, served from local files: the playground at /, Swagger UI at /docs.

They need no API key; /v1 does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
    "default-src 'none'; script-src 'self'; style-src 'self'{styles}; img-src 'self'{images}; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SWAGGER_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
_SWAGGER_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>diffuspec API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
<div id="page"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</html>
"""
_SWAGGER_START = (
    b"""SwaggerUIBundle({ url: "openapi.json", dom_id: "#page", deepLinking: true });\n"""
)


def add_playground(app: FastAPI) -> None:
    """Serve the playground, which shows speculation."""
    directory = files("diffuspec.serve").joinpath("playground")
    parts = {file.name: file.read_bytes() for file in directory.iterdir() if _kind(file.name)}
    _add_page(app, "/", "/playground", parts, _POLICY.format(styles="", images=""))


def add_api_docs(app: FastAPI) -> None:
    """Serve the page that shows /openapi.json, with files of the package fastapi-offline."""
    library = files("fastapi_offline").joinpath("static")
    parts = {name: library.joinpath(name).read_bytes() for name in _SWAGGER_FILES}
    parts |= {"index.html": _SWAGGER_PAGE, "start.js": _SWAGGER_START}
    # Swagger UI sets styles on elements, and has its icons as data URLs.
    policy = _POLICY.format(styles=" 'unsafe-inline'", images=" data:")
    _add_page(app, "/docs", "/docs", parts, policy)


def _add_page(
    app: FastAPI, path: str, directory: str, parts: Mapping[str, bytes], policy: str
) -> None:
    """Serve index.html at a path, and all parts in a directory. `policy`: what it may load."""

    async def page(request: Request) -> Response:
        return _respond("index.html", parts["index.html"], request, policy)

    async def part(name: str, request: Request) -> Response:
        if name not in parts:
            raise HttpError(404, "no such file", "not_found")
        return _respond(name, parts[name], request, policy)

    app.add_api_route(path, page, methods=["GET"], include_in_schema=False)
    app.add_api_route(f"{directory}/{{name}}", part, methods=["GET"], include_in_schema=False)


def _respond(name: str, content: bytes, request: Request, policy: str) -> Response:
    """Return a file, or 304 to a browser that has it cached."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"etag": tag, "cache-control": "no-cache", "content-security-policy": policy}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_kind(name), headers=headers)


def _kind(name: str) -> str | None:
    """Return the media type of a part of a page; None for any other file."""
    return _TYPES.get(name.rpartition(".")[2])
