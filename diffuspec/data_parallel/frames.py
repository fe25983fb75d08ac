"""Frames: length-prefixed messages on a socket between two processes of one machine."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.rpc.messages.status import TransportError

MAX_FRAME_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct("<I")


def frame(message: bytes) -> bytes:
    """Return a message with its length. Raises InvalidRequestError if it is too long."""
    if len(message) > MAX_FRAME_BYTES:
        raise InvalidRequestError(
            f"a message between processes must be at most {MAX_FRAME_BYTES} bytes, got"
            f" {len(message)}"
        )
    return _LENGTH.pack(len(message)) + message


def read_frame(connection: socket.socket) -> bytes:
    """Wait for the next message on a blocking socket. Raises TransportError when it is closed."""
    [size] = _LENGTH.unpack(_read(connection, _LENGTH.size))
    _check_size(size)
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise TransportError("the process has ended")
        data += chunk
    return bytes(data)


def _check_size(size: int) -> None:
    if size > MAX_FRAME_BYTES:
        raise TransportError(f"a frame of {size} bytes is longer than {MAX_FRAME_BYTES}")


class FrameSplitter:
    """Reassembles messages from received bytes, however they were split."""

    def __init__(self) -> None:
        self._rest = bytearray()  # the beginning of an incomplete frame

    def feed(self, data: bytes) -> list[bytes]:
        """Return the complete messages. Raises TransportError for one that is too long."""
        arrived: bytes | bytearray = data
        if self._rest:
            self._rest += data
            arrived = self._rest
        messages: list[bytes] = []
        start, begun = 0, _LENGTH.size
        while begun <= len(arrived):
            [size] = _LENGTH.unpack_from(arrived, start)
            _check_size(size)
            end = begun + size
            if end > len(arrived):
                break
            messages.append(bytes(arrived[begun:end]))
            start, begun = end, end + _LENGTH.size
        self._rest = bytearray(arrived[start:])
        return messages


class FrameProtocol(asyncio.Protocol):
    """Sends and receives messages in an event loop."""

    def __init__(
        self, on_message: Callable[[bytes], None], on_lost: Callable[[Exception | None], None]
    ) -> None:
        """`on_lost` is called once, at the connection's end or with the error that ended it."""
        self._on_message, self._on_lost = on_message, on_lost
        self._splitter = FrameSplitter()
        self._transport: Any = None
        self._resumed: asyncio.Event | None = None  # set when writing may resume; None: not paused
        self._error: Exception | None = None

    @property
    def is_writable(self) -> bool:
        """Return whether the other side keeps up with what is written."""
        return self._resumed is None

    async def writable(self) -> None:
        """Wait until the other side has taken most of what was written, or has gone."""
        while self._resumed is not None:
            await self._resumed.wait()

    def write(self, message: bytes) -> None:
        """Send a message; does nothing once the connection is lost. Raises InvalidRequestError."""
        data = frame(message)
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after what was written."""
        self._transport.close()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._splitter.feed(data):
                self._on_message(message)
        except TransportError as error:
            self._error = error
            self._transport.abort()

    def pause_writing(self) -> None:
        self._resumed = asyncio.Event()

    def resume_writing(self) -> None:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.resume_writing()
        self._on_lost(self._error or error)


async def open_frames(protocol: FrameProtocol, connection: socket.socket) -> None:
    """Attach a connected socket to a protocol, in the running event loop."""
    connection.setblocking(False)
    await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=connection)
