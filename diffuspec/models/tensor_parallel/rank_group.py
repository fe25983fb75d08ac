"""The group of processes that share one model, one process per rank, and their messages.

Forwards communicate over the default process group: NCCL on GPUs, gloo on CPUs. Messages between
the ranks use a second, gloo group with a shorter time-out, so that waiting for the next message has
another limit than reading weights.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from diffuspec.core.errors import DiffuspecError, VerifierError, VerifierUnavailableError

_BLOCK_BYTES = 1 << 16  # a message up to this size takes a single broadcast
_LENGTH_BYTES = 8
_HEAD_BYTES = _BLOCK_BYTES - _LENGTH_BYTES  # first part of a message, sent with its length
_MAX_MESSAGE_BYTES = 1 << 30
_FAILURE = "failure"  # key of the first reason for which a rank could not load


@dataclass(frozen=True, slots=True)
class RankLimits:
    """Limits on a rank's wait for the others."""

    meet_seconds: float = 60.0  # for all ranks to join
    compute_seconds: float = 600.0  # within a forward; the first one waits for all weights
    message_seconds: float = 60.0  # for rank 0's next message, and for all ranks to agree on a step


def open_meeting_point(host: str, limits: RankLimits) -> TCPStore:
    """Serve a store at a free port of one of this machine's addresses, and return it."""
    with socket.socket(socket.AF_INET) as listener:
        listener.bind((host, 0))
        listener.listen()
        port = listener.getsockname()[1]
        return TCPStore(
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=limits.meet_seconds),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )


def find_meeting_point(host: str, port: int, limits: RankLimits) -> TCPStore:
    """Return the store that rank 0 serves. Raises VerifierUnavailableError if none answers."""
    timeout = timedelta(seconds=limits.meet_seconds)
    try:
        return TCPStore(host, port, is_master=False, timeout=timeout)
    except RuntimeError as error:
        raise VerifierUnavailableError(
            f"rank 0 does not answer at {host}:{port} within {limits.meet_seconds} seconds"
        ) from error


class RankGroup:
    """This process's membership in a group of ranks; a process is in one group at a time.

    Every rank must make the same calls in the same order. Calls raise VerifierUnavailableError if
    another rank is lost or late; the group is then unusable.
    """

    def __init__(
        self,
        store: TCPStore,
        rank: int,
        num_ranks: int,
        device: torch.device,
        limits: RankLimits,
    ) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self._store: TCPStore | None = store
        self._block = torch.zeros(_BLOCK_BYTES, dtype=torch.uint8)
        _wait_for_all(store, rank, num_ranks, limits)
        is_cuda = device.type == "cuda"
        try:
            dist.init_process_group(
                "nccl" if is_cuda else "gloo",
                store=PrefixStore("ranks", store),
                rank=rank,
                world_size=num_ranks,
                timeout=timedelta(seconds=limits.compute_seconds),
                device_id=device if is_cuda else None,
            )
            timeout = timedelta(seconds=limits.message_seconds)
            self._messages: Any = dist.new_group(backend="gloo", timeout=timeout)
        except RuntimeError as error:
            self.close()
            raise VerifierUnavailableError(
                f"rank {rank} cannot connect to the others: {_first_line(error)}"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """Load this rank's share within: if that fails, all ranks fail with the first reason.

        Raises the error, naming the rank; VerifierUnavailableError if another rank has failed.
        """
        store = self._store
        assert store is not None
        try:
            yield
        except Exception as error:
            if reason := _failure(store):
                raise VerifierUnavailableError(
                    f"rank {self.rank} stops, since another one cannot load: {reason}"
                ) from error
            if isinstance(error, VerifierUnavailableError):
                raise
            reason = f"rank {self.rank}: {error}"
            store.set(_FAILURE, reason)
            self.close()  # the others wait for this rank no longer
            if isinstance(error, DiffuspecError):
                raise type(error)(reason) from error
            raise

    def broadcast(self, message: bytes = b"") -> bytes:
        """Return rank 0's message. The argument of other ranks is ignored."""
        block = self._block
        if self.rank == 0:
            head = len(message).to_bytes(_LENGTH_BYTES, "little") + message[:_HEAD_BYTES]
            block[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self._send(block)
        received = block.numpy().tobytes()
        length = int.from_bytes(received[:_LENGTH_BYTES], "little")
        if length > _MAX_MESSAGE_BYTES:
            raise VerifierError(f"message of {length} bytes, the limit is {_MAX_MESSAGE_BYTES}")
        head = received[_LENGTH_BYTES:][:length]
        if len(head) == length:
            return head
        rest = torch.empty(length - len(head), dtype=torch.uint8)
        if self.rank == 0:
            rest = torch.frombuffer(bytearray(message[len(head) :]), dtype=torch.uint8)
        self._send(rest)
        return head + rest.numpy().tobytes()

    def gather(self, value: int) -> list[int]:
        """Return the values of all ranks, in order. Values are signed 64-bit integers."""
        mine = torch.tensor([value])
        values = [torch.empty_like(mine) for _ in range(self.num_ranks)]
        try:
            dist.all_gather(values, mine, group=self._messages)
        except RuntimeError as error:
            raise self._lost(error) from error
        return [int(value) for value in values]

    def close(self) -> None:
        """Close the connections to the other ranks, and rank 0's port."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._messages = self._store = None

    def _send(self, data: torch.Tensor) -> None:
        try:
            dist.broadcast(data, src=0, group=self._messages)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> VerifierUnavailableError:
        return VerifierUnavailableError(f"rank {self.rank} lost another rank: {_first_line(error)}")


def _wait_for_all(store: TCPStore, rank: int, num_ranks: int, limits: RankLimits) -> None:
    """Wait until every rank has joined.

    Opening the connections has the longer limit of a forward, too long for detecting a missing
    rank.
    """
    names = [f"rank {number}" for number in range(num_ranks)]
    store.set(names[rank], "here")
    try:
        store.wait(names, timedelta(seconds=limits.meet_seconds))
    except RuntimeError as error:
        missing = [name for name in names if not store.check([name])]
        raise VerifierUnavailableError(
            f"{names[rank]} waited {limits.meet_seconds} seconds at {store.host}:{store.port} "
            f"for {', '.join(missing)}"
        ) from error


def _failure(store: TCPStore) -> str:
    """Return why a rank could not load; "" if none has said so."""
    try:
        return store.get(_FAILURE).decode() if store.check([_FAILURE]) else ""
    except RuntimeError:  # rank 0, which serves the store, is lost
        return ""


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), repr(error))
