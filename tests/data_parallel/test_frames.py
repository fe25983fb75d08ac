"""Messages between processes arrive whole and in order, however they were cut."""

import asyncio
import socket
import threading

import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.data_parallel import frames
from diffuspec.data_parallel.frames import (
    FrameProtocol,
    FrameSplitter,
    frame,
    open_frames,
    read_frame,
)
from diffuspec.rpc.messages.status import TransportError

MESSAGES = [b"a", b"", b"bc" * 1000, b"d"]
WIRE = b"".join(map(frame, MESSAGES))


@pytest.mark.parametrize("size", [1, 3, 5, 700, len(WIRE)])
def test_messages_are_found_in_pieces_of_any_size(size: int):
    splitter = FrameSplitter()
    pieces = [WIRE[start : start + size] for start in range(0, len(WIRE), size)]
    assert [one for piece in pieces for one in splitter.feed(piece)] == MESSAGES


def test_a_message_that_is_too_long_is_neither_sent_nor_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 8)
    assert FrameSplitter().feed(frame(bytes(8))) == [bytes(8)]
    with pytest.raises(InvalidRequestError, match="at most 8 bytes, got 9"):
        frame(bytes(9))
    with pytest.raises(TransportError, match="a frame of 9 bytes is longer than 8"):
        FrameSplitter().feed(b"\x09\x00\x00\x00")


def test_a_blocking_reader_waits_for_a_whole_message_and_notices_the_end():
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            for start in (0, 3, 6):
                theirs.sendall(frame(b"hello")[start : start + 3])
            assert read_frame(ours) == b"hello"
            theirs.sendall(frame(b"hello")[:6])
        with pytest.raises(TransportError, match="has ended"):
            read_frame(ours)


async def test_a_writer_is_held_up_until_the_other_side_reads():
    received: list[bytes] = []
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ours, theirs = socket.socketpair()
    writer = FrameProtocol(received.append, lambda _: lost.set_result(None))
    await open_frames(writer, ours)
    with theirs:
        sent = bytes(2**22)
        writer.write(sent)
        assert not writer.is_writable
        reading = threading.Thread(target=lambda: received.append(read_frame(theirs)))
        reading.start()
        await writer.writable()
        await asyncio.to_thread(reading.join)
        assert writer.is_writable and received == [sent]
        theirs.sendall(WIRE)
    await lost
    assert received[1:] == MESSAGES
    writer.write(b"into the void")


async def test_a_frame_that_is_too_long_ends_the_connection():
    lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    ours, theirs = socket.socketpair()
    with theirs:
        await open_frames(FrameProtocol(lambda _: None, lost.set_result), ours)
        theirs.sendall(b"\xff\xff\xff\xff")
        assert isinstance(await lost, TransportError)
