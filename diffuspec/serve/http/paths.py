"""Paths of requests, in which additional slashes mean nothing."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile("/{2,}")


def plain_path(path: str) -> str:
    """Return a path without double slashes and without a slash at its end."""
    return _SLASHES.sub("/", path).rstrip("/") or "/"


def route_of(scope: Scope) -> str:
    """Return the plain path that routes are compared with: behind the prefix of a proxy, if any."""
    path, root = plain_path(scope["path"]), plain_path(scope.get("root_path", ""))
    if root != "/" and f"{path}/".startswith(f"{root}/"):
        return path[len(root) :] or "/"
    return path


class PlainPaths:
    """ASGI middleware: normalises paths, so that routing and key checks see the same one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "path": plain_path(scope["path"])}
        await self._app(scope, receive, send)
