"""A replica of the ingress, which needs no GPU: HTTP, validation, tokenisation, streaming."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve._private import constants
from ray.serve.exceptions import RayServeException

from actors.exporter import export_always
from actors.service.backend import PipelinesBackend
from actors.service.directory import Member
from actors.service.pool import PipelinePool
from actors.service.settings import ServiceConfig
from actors.service.target_files import fetch_files
from diffuspec.core.addresses import is_loopback
from diffuspec.core.errors import ConfigError, WorkerError
from diffuspec.serve.app import create_app
from diffuspec.serve.conventions import read_conventions
from diffuspec.telemetry import logs, otel
from diffuspec.text.tokenizer import load_tokenizer

logger = logging.getLogger(__name__)

_HEAD = "node:__internal_head__"  # a resource that Ray gives the head
_CALL_SECONDS = 5.0  # time for the directory to answer


class Ingress:
    """The ingress: a plain class, which Serve runs together with the application that it builds."""

    async def __init__(  # type: ignore[misc]
        self, config: ServiceConfig, directory: Any, pipelines: Any
    ) -> None:
        """`pipelines` is not called, but a handle of it makes Serve start the pipelines."""
        logs.configure()
        otel.check()
        _check_access(config)
        self._config = config
        self._directory = directory
        target = config.pipeline.engine.target
        path = target.path
        if not path.exists():
            logger.warning("%s is not on this node: its files come from a pipeline's", path)
            path = await fetch_files(self._list_files)
        tokenizer = await asyncio.to_thread(load_tokenizer, path, target.chat_template)
        self._pool = PipelinePool(config.pipeline, self._list_pipelines)
        conventions = read_conventions(path, tokenizer, config.http)
        logger.info("%s: %s", config.model_name, conventions)
        self._backend = PipelinesBackend(
            config.model_name,
            config.pipeline,
            tokenizer,
            self._pool,
            self._list_series,
            config.patience_seconds,
            conventions,
        )
        await self._pool.__aenter__()
        self._exporting = otel.exporting("diffuspec-ingress")
        self._spans = self._exporting.__enter__()

    async def __del__(self) -> None:
        """Close the connections. Serve has already waited for the requests."""
        if hasattr(self, "_backend"):
            await self._pool.__aexit__()
        if hasattr(self, "_spans"):
            self._exporting.__exit__(None, None, None)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application. Serve calls this after the constructor."""
        app = create_app(self._backend, self._config.http, spans=self._spans)
        replica = serve.get_replica_context().replica_id.unique_id
        export_always(app.state.series.registry, {"replica": replica})
        return app

    async def _list_pipelines(self) -> Sequence[Member]:
        found: Sequence[Member] = await self._ask_directory("pipelines")
        return found

    async def _list_files(self) -> Mapping[str, bytes]:
        found: Mapping[str, bytes] = await self._ask_directory("files")
        return found

    async def _list_series(self) -> dict[str, str]:
        found: dict[str, str] = await self._ask_directory("metrics")
        return found

    async def _ask_directory(self, method: str) -> Any:
        """Call the directory. Raises WorkerError if it is down; Serve then starts another one."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await getattr(self._directory, method).remote()
        except (RayError, RayServeException, TimeoutError) as error:
            raise WorkerError(f"the directory does not answer: {error!r:.200}") from error


def _is_on_head() -> bool:
    own = ray.get_runtime_context().get_node_id()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return any(node["NodeID"] == own and _HEAD in node["Resources"] for node in nodes)


def _check_access(config: ServiceConfig) -> None:
    """Raise ConfigError if the service would be open to everybody on the network, or to nobody."""
    client: Any = serve.context._get_global_client()
    http = client.http_config
    if config.http.api_keys is None and not is_loopback(http.host):
        raise ConfigError(
            f"http_options.host is {http.host}: off loopback the service needs API keys, "
            "http.api_keys"
        )
    if constants.RAY_SERVE_ENABLE_HA_PROXY and is_loopback(http.host) and not _is_on_head():
        raise ConfigError(
            f"http_options.host is {http.host}, where the head's HAProxy reaches no ingress on "
            f"the node {socket.gethostname()}: set it to 0.0.0.0, with http.api_keys, or keep "
            "Ingress on the head by ray_actor_options.label_selector"
        )
    if constants.RAY_SERVE_ENABLE_HA_PROXY and http.ssl_certfile:
        raise ConfigError(
            "HAProxy speaks no TLS: remove http_options.ssl_certfile, or start the cluster without "
            "RAY_SERVE_ENABLE_HA_PROXY"
        )
