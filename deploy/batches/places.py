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
from deploy.batches.http import HttpService
from deploy.batches.in_process import BackendService
from deploy.batches.results import Service
from diffuspec.core.errors import ConfigError, VerifierUnavailableError
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.data_parallel.engine import DataParallelEngine
from diffuspec.serve.backend import Backend, ServedModel
from diffuspec.serve.conventions import read_conventions
from diffuspec.serve.server import EngineBackend, name_of
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
        num_threads = config.placement.verifier.num_threads
        async with DataParallelEngine.from_config(config.engine, num_threads) as engine:
            yield _service(EngineBackend(engine, name_of(config.engine.target.path)), config)

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
        name = name_of(config.engine.target.path)
        yield _service(_PipelineBackend(pipeline, name), config)


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


def _service(backend: Backend, config: PipelineConfig) -> BackendService:
    num_sequences = config.engine.target.max_sequences
    seconds = config.deadlines.answer_seconds
    return BackendService(backend, _ROWS_PER_SEQUENCE * num_sequences, seconds)


class _PipelineBackend:
    """A `Backend` over a pipeline that has started. The caller stops the pipeline."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        """`name`: the model's. Raises VerifierUnavailableError while there is no coordinator."""
        actor, config = pipeline.coordinator.actor, pipeline.config
        if actor is None:
            raise VerifierUnavailableError(pipeline.coordinator.problem)
        info, path = actor.ready.info, config.engine.target.path
        self.tokenizer: Any = load_tokenizer(path, config.engine.target.chat_template)
        self.model = ServedModel(
            name,
            int(time.time()),
            info.max_model_len,
            info.vocab_size,
            config.engine.speculation,
            read_conventions(path, self.tokenizer, ServeSettings()),
        )
        self._pipeline = pipeline

    def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput]:
        """See `Backend.stream`."""
        prompt = prompt_token_ids.tolist()
        return self._pipeline.stream(prompt, sampling, speculation, request_id)

    @property
    def is_alive(self) -> bool:
        return True

    async def status(self) -> ServiceStatus:
        """Return the state of roles and requests."""
        return await self._pipeline.status()

    async def metrics(self) -> str:
        """Return the Prometheus series as text."""
        return await self._pipeline.metrics()
