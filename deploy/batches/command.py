"""From a file of rows to a file of results: the run, its progress, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from deploy.batches.inputs import Line, jsonl_file, read, scan
from deploy.batches.outputs import Output, Result, drop_failures, open_output
from deploy.batches.places import Place
from deploy.batches.run import Options, Run
from deploy.batches.summary import Counts, progress_shown
from diffuspec.core.errors import ConfigError, DiffuspecError

_COPIES_OF_RAY = "runtime_resources"  # a folder above the working folder of Ray jobs


class Interrupted(BaseException):  # not an Exception, like KeyboardInterrupt
    """A signal has ended the batch."""

    CTRL_C = 128 + signal.SIGINT

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # the convention of shells


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raise Interrupted on SIGTERM within the block, so that everything it started is ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine. On SIGTERM or SIGINT cancel it, wait for its end and raise Interrupted."""
    received: list[int] = []

    async def watched() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        await work

    try:
        asyncio.run(watched())
    except asyncio.CancelledError:
        if not received:
            raise
        raise Interrupted(received[0]) from None


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a batch reads and writes."""

    input: Path
    output: Path
    limit: int | None = None  # number of rows to answer, from the first; None: all
    retries_failures: bool = False  # answer rows again that failed earlier


@dataclass(slots=True)
class Report:
    """The end of a batch."""

    counts: Counts
    seconds: float = 0.0  # seconds spent answering
    problem: BaseException | None = None  # the error that stopped the run early


def answer_file(files: Files, place: Place, options: Options, console: Console) -> Report:
    """Answer the rows that have no result yet, and show the progress on a console.

    Raises ConfigError for invalid files; later problems are in the report.
    """
    refuse_copies(files.output)
    source = jsonl_file(files.input, salt_of(options.defaults))
    index = scan(source)
    if files.retries_failures:
        drop_failures(files.output)
    report = Report(Counts(min(index.num_rows, files.limit or index.num_rows)))
    with open_output(files.output, index, report.counts.before.add) as output:
        if report.counts.num_done < report.counts.num_rows:
            lines = read(source, index, output.done, files.limit)
            try:
                with terminable(), place.surroundings():
                    run_until_signal(_answer(lines, output, place, options, report, console))
            except (DiffuspecError, OSError, Interrupted, KeyboardInterrupt) as error:
                report.problem = error
    return report


def salt_of(defaults: Mapping[str, Any]) -> bytes:
    """Return the options that affect answers, as bytes for the digests of rows."""
    return json.dumps(defaults, sort_keys=True).encode()


async def _answer(
    lines: Iterator[Line],
    output: Output,
    place: Place,
    options: Options,
    report: Report,
    console: Console,
) -> None:
    counts = report.counts
    async with place.service() as service:
        started = time.monotonic()
        try:
            with progress_shown(counts, console) as refresh:

                def count(result: Result) -> None:
                    counts.now.add(result)
                    refresh()

                await Run(service, output, options, count).finish(lines)
        finally:
            report.seconds = time.monotonic() - started


def refuse_copies(output: Path) -> None:
    """Raise ConfigError if the output would be deleted together with its Ray job."""
    here = Path.cwd()
    if _COPIES_OF_RAY in here.parts and output.resolve().is_relative_to(here.resolve()):
        raise ConfigError(
            f"--output {output} is in the job's copy of the working folder, which Ray deletes; "
            "give an absolute path of a folder that is kept"
        )
