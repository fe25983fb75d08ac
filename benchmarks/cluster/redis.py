"""A Redis beside the machines, in which Ray's head keeps what it knows."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster.machines import BRIDGE_ADDRESS, need
from diffuspec.core.errors import WorkerError

_PORT = 6380
_START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Redis:
    """Where a Redis listens, and its password."""

    password: str
    address: str = f"{BRIDGE_ADDRESS}:{_PORT}"


@contextlib.contextmanager
def redis() -> Iterator[Redis]:
    """Run a Redis without a disk on the bridge. Raises ConfigError and WorkerError."""
    need({"redis-server": "redis-server"})
    password = secrets.token_hex(32)
    with tempfile.TemporaryDirectory(prefix="redis") as folder:
        options = {"port": str(_PORT), "bind": BRIDGE_ADDRESS, "dir": folder, "save": ""}
        options["requirepass"] = password
        file = Path(folder) / "redis.conf"
        file.write_text("".join(f'{name} "{value}"\n' for name, value in options.items()))
        server = subprocess.Popen(["redis-server", file], stdout=subprocess.DEVNULL)
        try:
            _wait_for(server)
            yield Redis(password)
        finally:
            server.terminate()
            server.wait()


def _wait_for(server: subprocess.Popen[bytes]) -> None:
    ends_at = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection((BRIDGE_ADDRESS, _PORT), 1.0).close()
        except OSError as error:
            if server.poll() is not None or time.monotonic() > ends_at:
                raise WorkerError(f"redis-server does not start: {error}") from error
            time.sleep(0.1)
        else:
            return
