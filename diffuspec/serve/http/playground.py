"""The page at /, which shows speculation: static files of this package."""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from diffuspec.serve.http.static import is_part, respond_with
from diffuspec.serve.openai.errors import HttpError

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_playground(app: FastAPI) -> None:
    """Serve the page at / and its parts below /playground. They need no API key; /v1 does."""
    parts = _read_parts()

    async def page(request: Request) -> Response:
        """Show the playground."""
        return respond_with("index.html", parts["index.html"], request, _POLICY)

    async def part(name: str, request: Request) -> Response:
        """Return a part of the playground's page."""
        if name not in parts:
            raise HttpError(404, "no such file", "not_found")
        return respond_with(name, parts[name], request, _POLICY)

    app.add_api_route("/", page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/playground/{name}", part, methods=["GET"], include_in_schema=False)


def _read_parts() -> dict[str, bytes]:
    directory = files("diffuspec.serve").joinpath("playground")
    return {file.name: file.read_bytes() for file in directory.iterdir() if is_part(file.name)}
