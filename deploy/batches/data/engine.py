"""A large batch through Ray Data: a pool of actors, each with a pipeline, answers its parts."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from actors.settings import PipelineConfig
from deploy.batches.command import Interrupted, Report, refuse_copies, salt_of, terminable
from deploy.batches.data.parts import Format, Parts
from deploy.batches.data.shards import Shard, check_dependencies, plan
from deploy.batches.inputs import read, scan
from deploy.batches.outputs import open_output
from deploy.batches.places import pipeline_service
from deploy.batches.results import BatchStoppedError, Service
from deploy.batches.run import Options, Run
from deploy.batches.summary import Counts, Tally
from deploy.local_ray import ray_cluster
from deploy.runs import progress_bar
from diffuspec.core.errors import DiffuspecError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LargeBatch:
    """The input and output of a large batch, and its number of pipelines."""

    input: Path
    output: Path
    format: Format
    num_pipelines: int
    shard_bytes: int


def answer_folder(batch: LargeBatch, config: PipelineConfig, options: Options) -> Report:
    """Answer the parts of an input that are not complete yet.

    Raises ConfigError and MissingDependencyError before any work; later problems are in the
    report.
    """
    check_dependencies()
    refuse_copies(batch.output)
    planned = plan(batch.input, batch.shard_bytes)
    parts = Parts(batch.output.absolute(), batch.format)
    owner = {
        "input": planned.digest,
        "options": salt_of(options.defaults).decode(),
        "format": batch.format,
    }
    report = Report(Counts(0))
    with parts.claimed(owner):
        todo: list[Shard] = []
        for shard in planned.shards:
            if (tally := parts.done(shard.name)) is None:
                todo.append(shard)
            else:
                report.counts.before.merge(tally)
        if todo:
            _answer_on_ray(todo, batch.num_pipelines, (config, options, parts), report)
    counts = report.counts
    counts.num_rows = counts.num_done
    return report


def _answer_on_ray(
    todo: Sequence[Shard],
    max_pipelines: int,
    arguments: tuple[PipelineConfig, Options, Parts],
    report: Report,
) -> None:
    num_pipelines = min(max_pipelines, len(todo))
    try:
        with terminable(), ray_cluster("", arguments[0], num_pipelines):
            _answer_all(todo, num_pipelines, arguments, report)
    except (DiffuspecError, OSError, Interrupted, KeyboardInterrupt) as error:
        report.problem = error


def _answer_all(
    shards: Sequence[Shard],
    num_pipelines: int,
    arguments: tuple[PipelineConfig, Options, Parts],
    report: Report,
) -> None:
    """Distribute the parts, and count the results."""
    started = time.monotonic()
    with progress_bar() as progress:
        task = progress.add_task("parts", total=len(shards))
        try:
            for row in _tallies(shards, num_pipelines, arguments):
                report.counts.now.merge(Tally(**row))
                progress.advance(task)
        finally:
            report.seconds = time.monotonic() - started


def _tallies(
    shards: Sequence[Shard],
    num_pipelines: int,
    arguments: tuple[PipelineConfig, Options, Parts],
) -> Iterator[dict[str, Any]]:
    import ray.data
    from ray.exceptions import RayError

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # our own progress bar counts the parts
    context.issue_detectors_config.detectors = []
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = ray.data.from_items([asdict(shard) for shard in shards], override_num_blocks=len(shards))
    worker: Any = ShardAnswerer
    answered = rows.map(
        worker,
        fn_constructor_args=arguments,
        compute=ray.data.ActorPoolStrategy(size=num_pipelines, max_tasks_in_flight_per_actor=1),
        num_cpus=0,  # it only waits for its pipeline, which has its own CPUs
    )
    try:
        yield from answered.iter_rows()
    except RayError as error:
        cause = getattr(error, "cause", None) or error
        reason = str(cause).strip().splitlines()
        raise BatchStoppedError(reason[-1] if reason else type(cause).__name__) from error


class ShardAnswerer:
    """One actor's work: a pipeline in its own event loop answers one part after the other."""

    def __init__(self, config: PipelineConfig, options: Options, parts: Parts) -> None:
        """Start the pipeline; its roles end with this process."""
        self._options = options
        self._parts = parts
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._open = AsyncExitStack()
        self._service = self._run(self._open.enter_async_context(pipeline_service(config)))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Answer a part; return its statistics. Raises DiffuspecError."""
        shard = Shard(**row)
        work = answer_shard(shard, self._parts, self._service, self._options)
        return asdict(self._run(work))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def answer_shard(shard: Shard, parts: Parts, service: Service, options: Options) -> Tally:
    """Answer the rows of a part that have no result yet; return the part's statistics."""
    source, tally = shard.source(salt_of(options.defaults)), Tally()
    index = scan(source, may_be_empty=True)
    with open_output(parts.partial(shard.name), index, tally.add) as output:
        lines = read(source, index, output.done)
        await Run(service, output, options, tally.add).finish(lines)
    parts.finish(shard.name, tally)
    return tally
