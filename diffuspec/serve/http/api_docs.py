"""The page at /docs: Swagger UI over /openapi.json, all of it from this process.

The library's files come from the package fastapi-offline, so that the page needs no other server.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from diffuspec.serve.http.static import respond_with
from diffuspec.serve.openai.errors import HttpError

_LIBRARY = ("swagger-ui-bundle.js", "swagger-ui.css")
_PAGE = b"""<!doctype html>
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
_START = b"""SwaggerUIBundle({ url: "openapi.json", dom_id: "#page", deepLinking: true });\n"""
# Swagger UI writes styles into its elements, and has its icons as data.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def add_api_docs(app: FastAPI) -> None:
    """Serve the page at /docs and its parts below it. They need no API key; /v1 does."""
    library = files("fastapi_offline").joinpath("static")
    parts = {name: library.joinpath(name).read_bytes() for name in _LIBRARY}
    parts["start.js"] = _START

    async def page(request: Request) -> Response:
        """Show the API."""
        return respond_with("index.html", _PAGE, request, _POLICY)

    async def part(name: str, request: Request) -> Response:
        """Return a part of the page."""
        if name not in parts:
            raise HttpError(404, "no such file", "not_found")
        return respond_with(name, parts[name], request, _POLICY)

    app.add_api_route("/docs", page, methods=["GET"], include_in_schema=False)
    app.add_api_route("/docs/{name}", part, methods=["GET"], include_in_schema=False)
