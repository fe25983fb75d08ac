"""The HTTP application: the APIs of OpenAI and Anthropic over a backend.

`create_app` does not depend on what serves it: uvicorn in `server`, or Ray Serve.
"""

from __future__ import annotations

import contextlib
import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fastapi import FastAPI, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

from diffuspec.core.errors import DiffuspecError
from diffuspec.core.version import own_version
from diffuspec.serve.backend import Backend, ServedModel
from diffuspec.serve.http import errors, openapi
from diffuspec.serve.http.answer_routes import Add, add_answers
from diffuspec.serve.http.completions import Completions, Tokenization
from diffuspec.serve.http.edge import Edge, HeadAsGet, Load
from diffuspec.serve.http.keys import Keys
from diffuspec.serve.http.observer import HttpSeries, Observer
from diffuspec.serve.http.openapi import Health, Readiness, ServerLoad, Version
from diffuspec.serve.http.pages import add_api_docs, add_playground
from diffuspec.serve.http.paths import PlainPaths, plain_path
from diffuspec.serve.messages.asking import count_tokens
from diffuspec.serve.messages.bodies import CountBody
from diffuspec.serve.messages.objects import TokenCount, is_anthropics
from diffuspec.serve.openai.errors import HttpError, no_such_model
from diffuspec.serve.openai.objects import (
    DetokenizedText,
    Model,
    ModelList,
    TokenizedPrompt,
    TokenizerInfo,
)
from diffuspec.serve.openai.schema import extended_schema
from diffuspec.serve.openai.tokenization import (
    DETOKENIZE_SCHEMA,
    TOKENIZE_SCHEMA,
    detokenize,
    tokenize,
)
from diffuspec.serve.responses.asking import count_input
from diffuspec.serve.responses.bodies import ResponsesBody
from diffuspec.serve.responses.objects import InputTokens
from diffuspec.serve.settings import ServeSettings

if TYPE_CHECKING:
    from diffuspec.telemetry.request_spans import RequestSpans

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def create_app(
    backend: Backend, settings: ServeSettings, spans: RequestSpans | None = None
) -> FastAPI:
    """Return the application. `spans` records every request for OpenTelemetry.

    Raises ConfigError for an unreadable file of keys.
    """
    keys = None if settings.api_keys is None else Keys(settings.api_keys)
    app = FastAPI(
        title="diffuspec",
        version=own_version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would say http behind a gateway that terminates TLS
    )
    errors.install(app)
    openapi.install(app)
    app.state.series = series = HttpSeries()
    load = Load()
    app.add_middleware(Edge, settings=settings, keys=keys, load=load)
    app.add_middleware(Observer, series=series, spans=spans)
    app.add_middleware(HeadAsGet)
    app.add_middleware(PlainPaths)
    # For /openapi.json only: Edge checks the keys.
    shown = [] if keys is None else [Security(HTTPBearer(auto_error=False))]
    add = functools.partial(app.add_api_route, dependencies=shown)
    _add_tokenization(add, Tokenization(backend, settings))
    add_answers(add, Completions(backend, settings))  # the last of which takes every ID
    _add_models(add, backend)
    _add_metrics(add, backend, series)
    _add_health(app, backend, load)
    _expect_requests(app, series)
    add_api_docs(app)
    if settings.playground:
        add_playground(app)
    return app


def _expect_requests(app: FastAPI, series: HttpSeries) -> None:
    """Start the counts of all routes with bodies at 0."""
    for route in app.routes:
        if isinstance(route, APIRoute) and "POST" in (route.methods or ()):
            series.expect(route.path, "POST", route.responses)


def _add_tokenization(add: Add, tokenization: Tokenization) -> None:
    async def tokenize_prompt(request: Request) -> JSONResponse:
        """Return the token ids of the prompt of a chat or a completion."""
        return await tokenization.answer(tokenize, request)

    async def detokenize_ids(request: Request) -> JSONResponse:
        """Return the text of token ids."""
        return await tokenization.answer(detokenize, request)

    async def count(request: Request) -> JSONResponse:
        """Count the tokens of the prompt of a message."""
        return await tokenization.answer(count_tokens, request)

    async def count_of_response(request: Request) -> JSONResponse:
        """Count the tokens of the input of a response."""
        return await tokenization.answer(count_input, request)

    async def info() -> JSONResponse:
        """Describe the tokenizer, as in vLLM."""
        return await tokenization.info()

    counted, input_counted = "/v1/messages/count_tokens", "/v1/responses/input_tokens"
    of_response = extended_schema(ResponsesBody)
    for path, answer, schema, kind, description in (
        ("/tokenize", tokenize_prompt, TOKENIZE_SCHEMA, TokenizedPrompt, "The token ids."),
        ("/detokenize", detokenize_ids, DETOKENIZE_SCHEMA, DetokenizedText, "The text."),
        (counted, count, extended_schema(CountBody), TokenCount, "The number of tokens."),
        (input_counted, count_of_response, of_response, InputTokens, "The number of tokens."),
    ):
        responses = openapi.answers(
            kind, description, *openapi.OF_BODIES, is_anthropics=is_anthropics(path)
        )
        extra = openapi.takes(schema)
        add(path, answer, methods=["POST"], openapi_extra=extra, responses=responses)
    described = openapi.answers(TokenizerInfo, "The tokenizer.", *openapi.OF_THE_MODEL, 429)
    add("/tokenizer_info", info, methods=["GET"], responses=described)


def _add_models(add: Add, backend: Backend) -> None:
    async def models() -> JSONResponse:
        """List the served model."""
        one = _described(backend.model)
        listed: ModelList = {
            "object": "list",
            "data": [one],
            "has_more": False,
            "first_id": one["id"],
            "last_id": one["id"],
        }
        return JSONResponse(listed)

    async def model(request: Request) -> JSONResponse:
        """Describe the served model."""
        # PlainPaths changes the path in the same way.
        name = plain_path(backend.model.name).lstrip("/")
        if request.path_params["name"] != name:
            raise no_such_model(backend.model.name)
        return JSONResponse(_described(backend.model))

    statuses = openapi.OF_THE_MODEL
    responses = openapi.answers(ModelList, "The model, as a list of one.", *statuses)
    add("/v1/models", models, methods=["GET"], responses=responses)
    responses = openapi.answers(Model, "The model.", *statuses, 404)
    extra = openapi.takes_name("Name of the model.")
    path = "/v1/models/{name:path}"
    add(path, model, methods=["GET"], responses=responses, openapi_extra=extra)


def _described(model: ServedModel) -> Model:
    return {
        "id": model.name,
        "object": "model",
        "type": "model",
        "display_name": model.name,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat(),
        "created": model.created,
        "owned_by": "diffuspec",
        "max_model_len": model.max_model_len,
    }


def _add_metrics(add: Add, backend: Backend, series: HttpSeries) -> None:
    async def metrics() -> PlainTextResponse:
        """Return the Prometheus series: those of HTTP alone while the engine is not ready."""
        text = ""
        with contextlib.suppress(DiffuspecError):
            text = await backend.metrics()
        return PlainTextResponse(text + series.text(), media_type=_METRICS_TYPE)

    content = {"text/plain": {"schema": {"type": "string"}}}
    responses = openapi.said("The series.", content, *openapi.ANYWHERE, 401)
    add("/metrics", metrics, methods=["GET"], response_class=PlainTextResponse, responses=responses)


def _add_health(app: FastAPI, backend: Backend, load: Load) -> None:
    async def health() -> JSONResponse:
        """Return 200 while the process is alive, 503 when it should be started again."""
        if not backend.is_alive:
            message = "decoding has stopped: start this process again"
            raise HttpError(503, message, "unavailable", kind="server_error")
        alive: Health = {"status": "ok"}
        return JSONResponse(alive)

    async def show_load() -> JSONResponse:
        """Return the number of requests in progress, for load balancers; as in vLLM."""
        shown: ServerLoad = {"server_load": load.num_requests}
        return JSONResponse(shown)

    async def ready() -> JSONResponse:
        """Return 200 if requests can be answered now, else 503 and the reason."""
        return await _readiness(backend)

    async def show_version() -> JSONResponse:
        """Return the version of diffuspec."""
        shown: Version = {"version": app.version}
        return JSONResponse(shown)

    for path, answer, kind, description, statuses in (
        ("/health", health, Health, "The process is alive.", (400, 500, 503)),
        ("/ping", health, Health, "The same, by SageMaker's name.", (400, 500, 503)),
        ("/load", show_load, ServerLoad, "The load.", openapi.ANYWHERE),
        ("/ready", ready, Readiness, "Requests can be answered.", (400, 500, 503)),
        ("/version", show_version, Version, "The version.", openapi.ANYWHERE),
    ):
        responses = openapi.answers(kind, description, *statuses)
        app.add_api_route(path, answer, methods=["GET"], responses=responses)


async def _readiness(backend: Backend) -> JSONResponse:
    status = await backend.status()
    needed = status.roles[0]
    if not needed.is_healthy:
        raise HttpError(503, f"not ready: {needed.name}", "not_ready", kind="server_error")
    readiness: Readiness = {
        "status": "degraded" if status.degraded_reasons else "ready",
        "running": status.num_running,
        "waiting": status.num_waiting,
        "healthy_roles": sum(role.is_healthy for role in status.roles),
    }
    return JSONResponse(readiness)
