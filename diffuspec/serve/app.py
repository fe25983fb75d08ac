"""The HTTP application: OpenAI's API over a backend.

`create_app` has no part in what serves it: uvicorn in `server`, or Ray Serve.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeAlias

from fastapi import FastAPI, Security
from fastapi.security import HTTPBearer
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from diffuspec.core.errors import DiffuspecError
from diffuspec.serve.backend import Backend
from diffuspec.serve.http import errors
from diffuspec.serve.http.api_docs import add_api_docs
from diffuspec.serve.http.completions import Completions
from diffuspec.serve.http.edge import Edge, HeadAsGet
from diffuspec.serve.http.keys import Keys
from diffuspec.serve.http.observer import HttpSeries, Observer
from diffuspec.serve.http.playground import add_playground
from diffuspec.serve.http.tokenization import Tokenization
from diffuspec.serve.openai.bodies import ChatBody, CompletionBody
from diffuspec.serve.openai.errors import HttpError, no_such_model
from diffuspec.serve.openai.schema import ERROR, body_schema
from diffuspec.serve.openai.tokenization import (
    DETOKENIZE_SCHEMA,
    TOKENIZE_SCHEMA,
    detokenize,
    tokenize,
)
from diffuspec.serve.settings import ServeSettings

_ERROR = {"content": {"application/json": {"schema": ERROR}}}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "The request is refused.", **_ERROR},
    "5XX": {"description": "It cannot be answered now.", **_ERROR},
}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, or its chunks as events with `stream: true`.",
        "content": {"application/json": {}, "text/event-stream": {}},
    }
}
if TYPE_CHECKING:
    from diffuspec.telemetry.request_spans import RequestSpans

_Add: TypeAlias = Callable[..., None]  # FastAPI.add_api_route, with what such routes share

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(
    backend: Backend,
    settings: ServeSettings,
    spans: RequestSpans | None = None,
) -> FastAPI:
    """Return the application. `spans` records every request for OpenTelemetry.

    Raises ConfigError for a file of keys that cannot be read.
    """
    keys = None if settings.api_keys is None else Keys(settings.api_keys)
    app = FastAPI(
        title="diffuspec",
        version=package_version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # to plain HTTP, where a gateway has ended TLS
    )
    errors.install(app)
    app.state.series = series = HttpSeries()
    app.add_middleware(Edge, settings=settings, keys=keys)
    app.add_middleware(Observer, series=series, spans=spans)
    app.add_middleware(HeadAsGet)
    shown = [] if keys is None else [Security(HTTPBearer(auto_error=False))]  # in /openapi.json
    add = functools.partial(app.add_api_route, responses=_RESPONSES, dependencies=shown)
    threads = ThreadPoolExecutor(settings.max_tokenizing, "tokenize")
    _add_completions(add, Completions(backend, settings, threads))
    _add_tokenization(add, Tokenization(backend, settings, threads))
    _add_models(add, backend)
    _add_metrics(add, backend, series)
    _add_health(app, backend)
    add_api_docs(app)
    if settings.playground:
        add_playground(app)
    return app


def package_version() -> str:
    try:
        return version("diffuspec")
    except PackageNotFoundError:
        return "0+checkout"


def _add_completions(add: _Add, completions: Completions) -> None:
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        return await completions.answer("/v1/chat/completions", request)

    async def complete(request: Request) -> Response:
        """Continue a text."""
        return await completions.answer("/v1/completions", request)

    for path, answer, kind in (
        ("/v1/chat/completions", chat, ChatBody),
        ("/v1/completions", complete, CompletionBody),
    ):
        extra = _takes(body_schema(kind))
        add(path, answer, methods=["POST"], openapi_extra=extra, responses=_ANSWER | _RESPONSES)


def _takes(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAPI's entry for a request body of this schema."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def _add_tokenization(add: _Add, tokenization: Tokenization) -> None:
    async def tokenize_prompt(request: Request) -> JSONResponse:
        """Return the token ids of the prompt of a chat or a completion."""
        return await tokenization.answer(tokenize, request)

    async def detokenize_ids(request: Request) -> JSONResponse:
        """Return the text of token ids."""
        return await tokenization.answer(detokenize, request)

    extra = _takes(TOKENIZE_SCHEMA)
    add("/tokenize", tokenize_prompt, methods=["POST"], openapi_extra=extra)
    extra = _takes(DETOKENIZE_SCHEMA)
    add("/detokenize", detokenize_ids, methods=["POST"], openapi_extra=extra)


def _add_models(add: _Add, backend: Backend) -> None:
    def describe() -> dict[str, Any]:
        model = backend.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "diffuspec",
            "max_model_len": model.max_model_len,
        }

    async def models() -> JSONResponse:
        """List the served model."""
        return JSONResponse({"object": "list", "data": [describe()]})

    async def model(name: str) -> JSONResponse:
        """Describe the served model."""
        if name != backend.model.name:
            raise no_such_model(backend.model.name)
        return JSONResponse(describe())

    add("/v1/models", models, methods=["GET"])
    add("/v1/models/{name:path}", model, methods=["GET"])


def _add_metrics(add: _Add, backend: Backend, series: HttpSeries) -> None:
    async def metrics() -> PlainTextResponse:
        """Return the Prometheus series; of HTTP alone while nothing else answers."""
        text = ""
        with contextlib.suppress(DiffuspecError):
            text = await backend.metrics()
        return PlainTextResponse(text + series.text(), media_type=_METRICS_TYPE)

    add("/metrics", metrics, methods=["GET"], response_class=PlainTextResponse)


def _add_health(app: FastAPI, backend: Backend) -> None:
    async def health() -> JSONResponse:
        """Tell that the process is alive."""
        return JSONResponse({"status": "ok"})

    async def ready() -> JSONResponse:
        """Tell whether requests can be answered now: 200, or 503 and why not."""
        return await _readiness(backend)

    async def show_version() -> JSONResponse:
        """Return the version of diffuspec."""
        return JSONResponse({"version": app.version})

    app.add_api_route("/health", health, methods=["GET"])
    app.add_api_route("/ready", ready, methods=["GET"], responses=_RESPONSES)
    app.add_api_route("/version", show_version, methods=["GET"])


async def _readiness(backend: Backend) -> JSONResponse:
    status = await backend.status()
    broken = [
        one.name for one in status.roles if one.name.startswith("verifier") and not one.is_healthy
    ]
    if broken:
        raise HttpError(503, f"not ready: {', '.join(broken)}", "not_ready", kind="server_error")
    return JSONResponse(
        {
            "status": "degraded" if status.degraded_reasons else "ready",
            "running": status.num_running,
            "waiting": status.num_waiting,
            "healthy_roles": sum(role.is_healthy for role in status.roles),
        }
    )
