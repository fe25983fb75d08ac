"""The Ray cluster of a command: a running one, or a new one on this machine."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import ray

from actors.placement import ONE_MACHINE, PlacementError, check_room
from actors.settings import PipelineConfig
from deploy.addresses import check_reachable
from deploy.cluster_watch import ended_within, watched
from deploy.guardian import guarded
from diffuspec.core.errors import ConfigError

_OWN = "local"  # Ray's word for a new cluster
_OBJECT_STORE_BYTES = 100 * 2**20
_STOP_SECONDS = 60.0  # time for all processes of a cluster to end


@contextlib.contextmanager
def ray_cluster(
    address: str,
    pipeline: PipelineConfig | None,
    num_pipelines: int = 1,
    directories: Sequence[Path] = (),
) -> Iterator[None]:
    """Connect to a cluster, or start one that ends with this context and leaves no files.

    Without an address RAY_ADDRESS is used, which Ray sets in its jobs; without both, a new cluster
    is started. Raises ConfigError if there is no cluster at the address, and PlacementError at once
    if a new cluster, which does not grow, can never hold `num_pipelines` pipelines. pipeline: None
    if the cluster is for something other than pipelines.

    A new cluster also ends with this process, however that ends, and `directories` are then
    removed. This process ends when its cluster does.
    """
    option = "--address" if address else "RAY_ADDRESS"
    address = address or os.environ.get("RAY_ADDRESS") or _OWN
    if address != _OWN:
        with running_cluster(address, option):
            yield
        return
    # Else glibc gives each of Ray's many threads a heap, which keeps its largest size for good.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    with (
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as directory,
        guarded(Path(directory), *directories),
        ThreadPoolExecutor(1) as thread,  # Ray's processes end with the thread that started them
    ):
        try:
            with _interrupts_held():  # Ray crashes when interrupted during its start
                _start(directory, thread)
            with watched():
                if pipeline is not None:
                    _check_room_here(pipeline, num_pipelines)
                yield
        finally:
            with _interrupts_held(), ended_within(_STOP_SECONDS, "the end of the Ray cluster"):
                ray.shutdown(wait_for_processes=True)  # they write into the directory


@contextlib.contextmanager
def running_cluster(address: str, option: str) -> Iterator[None]:
    """Connect to the cluster at the address given by an option. Raises ConfigError."""
    if "://" in address:
        raise ConfigError(
            f"{option} is {address}: a client of Ray cannot run a pipeline. Run this on a node of "
            "the cluster with `auto`, or as a job: ray job submit --address http://HEAD:8265 -- ..."
        )
    if ":" in address:
        check_reachable(option, address)  # Ray would retry for minutes
    try:
        with _interrupts_held(), ThreadPoolExecutor(1) as thread:
            _connect(thread, address=address, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0].partition(". ")[0]  # Ray's advice follows
        raise ConfigError(f"{option}: no Ray cluster at {address}: {reason}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _start(directory: str, thread: Executor) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # otherwise actors are slower than this process
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Ray would warn that the cluster requires a token, and say how to turn that off.
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)
    _connect(
        thread,
        address=_OWN,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        configure_logging=False,
        labels=ONE_MACHINE,
        _temp_dir=directory,
    )


def _connect(thread: Executor, **options: Any) -> None:
    """Call ray.init in another thread, where Ray leaves this process's signal handlers alone.

    Its handler of SIGTERM would exit at once, with code 15.
    """
    logging.getLogger("ray._private.worker").setLevel(logging.ERROR)  # it warns of just that
    thread.submit(ray.init, **options).result()


def _check_room_here(pipeline: PipelineConfig, num_pipelines: int) -> None:
    try:
        check_room(pipeline, num_pipelines)
    except PlacementError as error:
        what = "the pipeline" if num_pipelines == 1 else f"{num_pipelines} pipelines"
        raise PlacementError(
            f"this machine cannot hold {what}, and no other cluster is given (--address, "
            f"RAY_ADDRESS): {error}"
        ) from error


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of the block; a second one is handled at once."""
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)
        if len(held) > 1:
            handlers[number](number, frame)

    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(handler := signal.getsignal(number)):
            handlers[number] = handler
            signal.signal(number, hold)
    try:
        yield
    finally:
        for held_number, handler in handlers.items():
            signal.signal(held_number, handler)
    if held:
        signal.raise_signal(held[0])
