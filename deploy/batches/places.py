"""Where a batch is answered: at an address, by roles in this process, or by a pipeline on Ray."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.settings import PipelineConfig
from deploy.batches.engine_process import EngineProcess
from deploy.batches.http import HttpService
from deploy.batches.in_process import BackendService
from deploy.batches.results import Service
from diffuspec.core.errors import ConfigError, VerifierUnavailableError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.engine.preflight import check_files
from diffuspec.serve.backend import ServedModel, TokenSource
from diffuspec.serve.conventions import read_conventions
from diffuspec.serve.server import name_of
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from actors.pipeline import Pipeline

API_KEY_VARIABLE = "DIFFUSPEC_API_KEY"

_AUTO = "auto"
_ROWS_PER_SEQUENCE = 2  # two, so that the next row is ready when one ends


@contextlib.contextmanager
def needs_ray(what: str, extra: str = "ray") -> Iterator[None]:
    """Import what needs Ray within this context. Raises ConfigError if Ray is not installed.

    extra: of the distribution, which installs Ray.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "ray":
            raise
        raise ConfigError(f"{what} needs Ray: pip install 'diffuspec[{extra}]'") from None


@dataclass(frozen=True, slots=True)
class Place:
    """The contexts of a service; `surroundings` are entered first, outside an event loop."""

    surroundings: Callable[[], AbstractContextManager[None]]
    service: Callable[[], AbstractAsyncContextManager[Service]]


def at_address(address: str, key_file: Path | None, concurrency: int, seconds: float) -> Place:
    """Return the endpoint at a URL; "auto": the Ray Serve application on this cluster.

    Raises ConfigError for an unreadable key file, and for "auto" without an application.
    """
    key = read_api_key(key_file)
    if address == _AUTO:
        with needs_ray("--address auto"):
            from deploy.batches.serve_app import running_app

        address = running_app()
    url = address.rstrip("/").removesuffix("/v1")

    def service() -> AbstractAsyncContextManager[Service]:
        return HttpService(url, key, concurrency=concurrency, timeout_seconds=seconds)

    return Place(contextlib.nullcontext, service)


def in_process(config: PipelineConfig) -> Place:
    """Return a pipeline's roles in a child process, on one machine without Ray.

    A row that ends this process does not end the batch.
    """

    @contextlib.asynccontextmanager
    async def service() -> AsyncIterator[Service]:
        check_files(config.engine)  # all faults at once
        async with EngineProcess(config) as engine:
            yield _service(_RemoteModel(engine, engine.ready.info, config), config)

    return Place(contextlib.nullcontext, service)


def on_ray(config: PipelineConfig) -> Place:
    """Return a pipeline on the cluster of RAY_ADDRESS, or on a new cluster on this machine."""
    with needs_ray("a batch without --address or --engine process"):
        from deploy.local_ray import ray_cluster

    return Place(lambda: ray_cluster("", config), lambda: pipeline_service(config))


@contextlib.asynccontextmanager
async def pipeline_service(config: PipelineConfig) -> AsyncIterator[Service]:
    """Start a pipeline on the cluster that this process is connected to."""
    from actors.pipeline import Pipeline

    async with Pipeline(config) as pipeline:
        actor = pipeline.coordinator.actor
        if actor is None:
            raise VerifierUnavailableError(pipeline.coordinator.problem)
        yield _service(_RemoteModel(pipeline, actor.ready.info, config), config)


def read_api_key(path: Path | None) -> str | None:
    """Return the key in a file, else in the environment, else None. Raises ConfigError."""
    if path is None:
        return os.environ.get(API_KEY_VARIABLE) or None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the API key in {path}: {error}") from error
    if not key.isascii() or not key.isprintable() or not key:
        raise ConfigError(f"{path} must hold one API key, a line of printable ASCII")
    return key


def _service(model: TokenSource, config: PipelineConfig) -> BackendService:
    num_sequences = config.engine.target.max_sequences
    seconds = config.deadlines.answer_seconds
    return BackendService(model, _ROWS_PER_SEQUENCE * num_sequences, seconds)


class _RemoteModel:
    """A `TokenSource` over a pipeline or an engine's process, which the caller stops."""

    def __init__(
        self, source: Pipeline | EngineProcess, info: TargetInfo, config: PipelineConfig
    ) -> None:
        path = config.engine.target.path
        self.tokenizer: Any = load_tokenizer(path, config.engine.target.chat_template)
        self.model = ServedModel(
            name_of(path),
            int(time.time()),
            info.max_model_len,
            info.vocab_size,
            config.engine.speculation,
            read_conventions(path, self.tokenizer, ServeSettings()),
        )
        self._source = source

    def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput]:
        """See `TokenSource.stream`."""
        return self._source.stream(prompt_token_ids, sampling, speculation, request_id)
