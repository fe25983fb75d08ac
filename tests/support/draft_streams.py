"""Draft services that a test scripts, and engines' own Pythons that run our plug-ins."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

import diffuspec_client
from diffuspec_client.draft_service_pb2 import ConnectRequest, ConnectResponse


class StreamServer(ABC):
    """Serves the draft service at an address, with the answers of a subclass."""

    def __init__(self, address: str) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(2))
        handler = grpc.stream_stream_rpc_method_handler(
            self._connect, ConnectRequest.FromString, ConnectResponse.SerializeToString
        )
        service = grpc.method_handlers_generic_handler(
            "diffuspec.v1.DraftService", {"Connect": handler}
        )
        self._server.add_generic_rpc_handlers([service])
        self._server.add_insecure_port(address)
        self._server.start()

    @abstractmethod
    def _connect(self, requests: Any, context: Any) -> Iterator[ConnectResponse]:
        """Answer the messages of one engine."""

    def stop(self) -> None:
        self._server.stop(None).wait()


def output_of(python: Path | str, code: str) -> str:
    """Run code with the client on its path; return what it prints."""
    path = str(Path(diffuspec_client.__file__).parents[1])
    ended = subprocess.run(
        [str(python), "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout
