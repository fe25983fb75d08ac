"""The output of a batch: results appended line by line, each on disk before it counts as done.

A killed process loses only the answers in progress. The next one reads from the file which rows are
done: every result names its input line and the digest of that line.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from socket import gethostname
from typing import Any, BinaryIO, TypeAlias

from deploy.batches.inputs import Index
from deploy.batches.results import encode, is_failure, place_of
from diffuspec.core.errors import ConfigError
from diffuspec.core.files import cut_torn_line

Result: TypeAlias = Mapping[str, Any]
OnResult: TypeAlias = Callable[[Result], None]


@contextlib.contextmanager
def locked(path: Path, output: Path) -> Iterator[BinaryIO]:
    """Open a file to read and append, for one process at a time; create it if it does not exist.

    Raises ConfigError, which names `output`, for a folder or a device, or if another process holds
    it.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"the output must be a file; {output} is a folder or a device")
    try:
        file = path.open("a+b")
    except OSError as error:
        raise ConfigError(
            f"cannot write the output {output} on {gethostname()}: {error.strerror}"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except BlockingIOError:
            is_ours = False
        except OSError as error:
            raise ConfigError(f"cannot lock the output {output}: {error.strerror}") from error
        if not is_ours:  # locked, or replaced by the process that had locked it
            raise ConfigError(f"the output {output} is in use by another batch")
        file.seek(0)
        yield file


class Output:
    """An open and locked output file; see `open_output`. Belongs to one event loop."""

    def __init__(self, file: BinaryIO, done: bytearray) -> None:
        self.done = done  # 1 for each row that has a result, by line number of the input
        self._file = file
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def append(self, result: Result, on_written: OnResult) -> None:
        """Write a result; return once it is on disk. Simultaneous results share a write.

        on_written is then called with the result, even if the caller has been cancelled meanwhile.
        """

        def tell(written: asyncio.Future[None]) -> None:
            if written.exception() is None:
                on_written(result)

        written = asyncio.get_running_loop().create_future()
        written.add_done_callback(tell)
        self._waiting.append((encode(result), written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await asyncio.shield(written)

    async def flush(self) -> None:
        """Wait until everything is on disk, even if a caller of `append` was cancelled."""
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting, []
            content = b"".join(line for line, _ in taken)
            try:
                await asyncio.to_thread(self._put, content)
            except OSError as error:
                for _, written in taken:
                    written.set_exception(error)
            else:
                for _, written in taken:
                    written.set_result(None)

    def _put(self, content: bytes) -> None:
        """Append to the file, bypassing its buffer, which would retry on closing."""
        descriptor, left = self._file.fileno(), memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)


@contextlib.contextmanager
def open_output(path: Path, index: Index, on_result: OnResult) -> Iterator[Output]:
    """Create an output or continue one; on_result is called with each existing result.

    A truncated last line is removed. Raises ConfigError if the file is in use, or contains anything
    but results of this input.
    """
    with locked(path, path) as file:
        _sync_folder(path.absolute().parent)
        cut_torn_line(file)
        yield Output(file, _read_results(path, file, index, on_result))


def drop_failures(path: Path) -> int:
    """Remove the results of failed rows, so that they are retried; return their number.

    Raises ConfigError like `open_output`.
    """
    if not path.exists():
        return 0
    kept = path.with_name(f"{path.name}.kept")
    num_dropped = 0
    with locked(path, path) as file, kept.open("wb") as copy:
        cut_torn_line(file)
        for number, line in enumerate(file, start=1):
            if is_failure(_parse(path, number, line)):
                num_dropped += 1
            else:
                copy.write(line)
        copy.flush()
        os.fsync(copy.fileno())
        os.replace(kept, path)
    return num_dropped


def _sync_folder(folder: Path) -> None:
    """Write the file's name to disk as well."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_results(path: Path, file: BinaryIO, index: Index, on_result: OnResult) -> bytearray:
    """Return which rows are done. Raises ConfigError for a result of any other row."""
    done = bytearray(len(index.digests))
    for number, line in enumerate(file, start=1):
        result = _parse(path, number, line)
        place = place_of(result)
        assert place is not None
        row, digest = place
        if not index.has(row, digest):
            raise ConfigError(
                f"{path}, line {number} is the result of another input, or of other options: "
                f"line {row} of this input is not what it answers"
            )
        if done[row]:
            raise ConfigError(f"{path}, line {number} is a second result for line {row}")
        done[row] = 1
        on_result(result)
    return done


def _parse(path: Path, number: int, line: bytes) -> Result:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        result = None
    if place_of(result) is None:
        raise ConfigError(f"{path}, line {number} is no result of a batch; give another --output")
    parsed: Result = result
    return parsed
