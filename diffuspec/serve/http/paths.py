"""Request paths, in which additional slashes have no meaning."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile("/{2,}")


def plain_path(path: str) -> str:
    """Return a path without double slashes and trailing slash."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def route_of(scope: Scope) -> str:
    """Return the plain path for routing, without a proxy's prefix if any."""
    path, root = plain_path(scope["path"]), plain_path(scope.get("root_path", ""))
    if root != "/" and f"{path}/".startswith(f"{root}/"):
        return path[len(root) :] or "/"
    return path


class PlainPaths:
    """ASGI middleware: normalises paths, so that routing and key checks see the same path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": plain_path(scope["path"])}
        await self._app(scope, receive, send)
