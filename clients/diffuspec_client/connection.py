"""The connection: one stream to the draft server, reopened until it is closed."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from diffuspec_client.draft_service_pb2 import ConnectRequest, ConnectResponse, EngineStep, Hello
from diffuspec_client.settings import Settings
from diffuspec_client.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_METHOD = "/diffuspec.v1.DraftService/Connect"
_DETAILS_KEY = "grpc-status-details-bin"
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.2, 30.0  # pauses between attempts
_WELCOME_SECONDS = 10.0
_OPTIONS = [
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


class Connection:
    """Connects in its own thread, and reconnects after each failure."""

    def __init__(
        self,
        settings: Settings,
        hello: Hello,
        vocabulary: Vocabulary,
        take: Callable[[Any], None],
    ) -> None:
        """`take` is called with each message of the server, and with None when the connection ends.

        Raises OSError if a file named in the settings cannot be read.
        """
        self.number = 0  # number of the present connection; 0: none
        self._settings = settings
        self._hello = hello
        self._vocabulary = vocabulary
        self._take = take
        self._credentials = _credentials(settings)
        token = settings.token
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._num_connections = 0
        self._outbox: queue.SimpleQueue[ConnectRequest | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._is_there = threading.Event()
        self.num_losses = 0  # servers that were lost without notice
        self._call: Any = None
        self._problem = ""
        threading.Thread(target=self._run, name="diffuspec-drafts", daemon=True).start()

    def send(self, step: EngineStep) -> None:
        self._outbox.put(ConnectRequest(step=step))

    def wait(self, seconds: float) -> bool:
        return self._is_there.wait(seconds)

    def close(self) -> None:
        self._is_closed.set()
        self._outbox.put(None)
        if self._call is not None:
            self._call.cancel()

    # ---- the thread

    def _run(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._is_closed.is_set():
            had_welcome = False
            try:
                with self._channel() as channel:
                    had_welcome = self._exchange(channel, self._hello)
            except Exception as error:
                had_welcome = self.number > 0
                self.num_losses += had_welcome and _is_crash(error)
                self._lost(error)
            self.number = 0
            self._is_there.clear()
            self._take(None)
            pause = _FIRST_PAUSE_SECONDS if had_welcome else min(2 * pause, _MAX_PAUSE_SECONDS)
            self._is_closed.wait(pause)

    def _channel(self) -> grpc.Channel:
        settings = self._settings
        options: list[tuple[str, int | str]] = [*_OPTIONS]
        if self._credentials is None:
            return grpc.insecure_channel(settings.server, options)
        if settings.tls_server_name:
            options.append(("grpc.ssl_target_name_override", settings.tls_server_name))
        return grpc.secure_channel(settings.server, self._credentials, options)

    def _exchange(self, channel: grpc.Channel, hello: Hello) -> bool:
        """Exchange messages until the stream ends. Returns whether the hello was accepted."""
        outbox: queue.SimpleQueue[ConnectRequest | None] = queue.SimpleQueue()
        outbox.put(ConnectRequest(hello=hello))
        self._outbox = outbox
        connect = channel.stream_stream(
            _METHOD,
            request_serializer=ConnectRequest.SerializeToString,
            response_deserializer=ConnectResponse.FromString,
        )
        call = self._call = connect(_messages(outbox), metadata=self._metadata)
        if self._is_closed.is_set():  # `close` has not seen this call
            call.cancel()
        timer = threading.Timer(_WELCOME_SECONDS, call.cancel)
        timer.daemon = True
        timer.start()
        try:
            for message in call:
                if message.WhichOneof("message") == "welcome":
                    timer.cancel()
                    self._welcomed(message.welcome)
                else:
                    self._take(message)
        finally:
            timer.cancel()
            outbox.put(None)
        return self.number > 0

    def _welcomed(self, welcome: Any) -> None:
        self._num_connections += 1
        self._problem = ""
        message = "diffuspec: drafts come from %s (%s), at most %d tokens each"
        logger.info(message, self._settings.server, welcome.drafter, welcome.max_draft_tokens)
        self.number = self._num_connections
        self._is_there.set()

    def _lost(self, error: Exception) -> None:
        """Log why there are no drafts, once per reason."""
        code = error.code() if isinstance(error, grpc.RpcError) else None
        reason = error.details() if isinstance(error, grpc.RpcError) else repr(error)
        if code == grpc.StatusCode.FAILED_PRECONDITION and self._hello.vocabulary_digest:
            reason = self._which_token_differs() or reason
        if self._is_closed.is_set() or reason == self._problem:
            return
        self._problem = reason or ""
        logger.warning(
            "diffuspec: no drafts from %s, decoding goes on without: %s",
            self._settings.server,
            reason,
        )

    def _which_token_differs(self) -> str:
        """Connect again with all tokens, so that the server names the first difference."""
        hello = Hello()
        hello.CopyFrom(self._hello)
        hello.vocabulary.extend(self._vocabulary.tokens)
        try:
            with self._channel() as channel:
                self._exchange(channel, hello)
        except grpc.RpcError as error:
            return str(error.details())
        except Exception as error:
            logger.debug("the vocabulary could not be compared: %s", error)
        return ""


def _is_crash(error: Exception) -> bool:
    """Return whether a connection broke. A server that ends one on purpose gives details."""
    if not isinstance(error, grpc.RpcError) or error.code() != grpc.StatusCode.UNAVAILABLE:
        return False
    metadata: Any = error.trailing_metadata() or ()
    return all(key != _DETAILS_KEY for key, _ in metadata)


def _messages(
    outbox: queue.SimpleQueue[ConnectRequest | None],
) -> Iterator[ConnectRequest]:
    while (message := outbox.get()) is not None:
        yield message


def _credentials(settings: Settings) -> grpc.ChannelCredentials | None:
    if not settings.tls_ca:
        return None
    files = (settings.tls_ca, settings.tls_key, settings.tls_certificate)
    ca, key, certificate = [Path(one).read_bytes() for one in files]
    return grpc.ssl_channel_credentials(ca, key, certificate)
