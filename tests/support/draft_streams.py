"""Draft services that a test scripts, and engines' own Pythons that run our plug-ins."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

import diffuspec_client
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.tokenizer import load_tokenizer
from diffuspec_client.draft_service_pb2 import (
    ConnectRequest,
    ConnectResponse,
    StepDrafts,
    Welcome,
)
from diffuspec_client.vocabulary import Vocabulary

TOKENS = load_tokenizer(TARGET).get_vocab()
VOCABULARY = Vocabulary(TOKENS)
SECONDS = 60.0  # until a client is connected, on a busy machine


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


class Scripted(StreamServer):
    """A server that answers each step with what a function makes of it."""

    def __init__(self, address: str, answer: Callable[[Any], StepDrafts | None]) -> None:
        self._answer = answer
        self.requests: list[Any] = []
        super().__init__(address)

    def _connect(self, requests: Any, context: Any) -> Iterator[ConnectResponse]:
        for request in requests:
            self.requests.append(request)
            if request.WhichOneof("message") == "hello":
                yield ConnectResponse(welcome=Welcome(protocol_version=1, drafter="scripted"))
                continue
            answer = self._answer(request.step)
            if answer is not None:
                yield ConnectResponse(drafts=answer)


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
