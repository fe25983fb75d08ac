"""The objects that tell of the service itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic refuses typing's before Python 3.12


class Version(TypedDict):
    version: str


class Health(TypedDict):
    status: Literal["ok"]


class ServerLoad(TypedDict):
    server_load: Annotated[int, Field(description="Requests in progress.")]


class Readiness(TypedDict):
    status: Annotated[
        Literal["ready", "degraded"], Field(description="degraded: slower, with the same answers.")
    ]
    running: int
    waiting: int
    healthy_roles: int
