"""HAProxy as `make serve` starts it: the real one, with Serve's file and our script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from deploy.haproxy import SCRIPT, variables
from diffuspec.serve.settings import ServeSettings
from tests.support.ports import free_port


class Proxy:
    """HAProxy on a port of loopback, with its files in a short directory."""

    def __init__(self, directory: Path, http: ServeSettings) -> None:
        self._stack = contextlib.ExitStack()
        found = self._stack.enter_context(variables(directory, http))
        self.port, self.path = free_port(), directory / "haproxy.cfg"
        self.environment = {**os.environ, **found}
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def configure(self, servers: Sequence[int]) -> None:
        """Write what Serve writes for replicas at these ports, and before it knows of any."""
        given, directory = self.environment, self._directory
        config = HAProxyConfig(
            socket_path=str(directory / "admin.sock"),
            server_state_base=str(directory),
            server_state_file=str(directory / "state"),
            http_options=HTTPOptions(host="127.0.0.1", port=self.port),
            stats_port=int(given["RAY_SERVE_HAPROXY_STATS_PORT"]),
            metrics_port=int(given["RAY_SERVE_HAPROXY_METRICS_PORT"]),
            metrics_enabled=False,
            http_health_check_path=None,  # a connection is enough
            retry_on=given["RAY_SERVE_HAPROXY_RETRY_ON"],
            is_head=True,
        )
        found = [ServerConfig(f"replica-{port}", "127.0.0.1", port) for port in servers]
        backend = BackendConfig("app", "/", servers=found, http_health_check_path=None)
        backends = {"app": backend} if found else {}

        async def write() -> None:  # Serve's class wants a running loop
            HAProxyApi(config, backends, str(self.path))._generate_config_file_internal()

        asyncio.run(write())

    def start(
        self, servers: Sequence[int] = (), changes: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start HAProxy, after the one that runs, if any, was killed.

        `changes`: texts of our script, and what takes their places.
        """
        self.stop()
        self.configure(servers)
        text = SCRIPT.read_text()
        for old, new in (changes or {}).items():
            text = text.replace(old, new)
        command = ["sh", "-c", text, str(SCRIPT), "-db", "-f", str(self.path)]
        self._process = subprocess.Popen(command, env=self.environment)
        return self._process

    def connect(self) -> socket.socket:
        """Connect as soon as HAProxy listens."""
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=30)
            except ConnectionRefusedError:
                continue

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
