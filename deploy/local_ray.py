"""The Ray cluster that a command runs on: one that is there, or one of its own on this machine."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

import ray

from actors.placement import PlacementError, check_room
from actors.settings import PipelineConfig

_OWN = "local"  # in Ray's words
_OBJECT_STORE_BYTES = 100 * 2**20


@contextlib.contextmanager
def ray_cluster(address: str, pipeline: PipelineConfig) -> Iterator[None]:
    """Connect to a cluster, or start one that ends with this; nothing of it stays.

    address "": what RAY_ADDRESS says, as it does in a job that Ray runs; else one of its own.
    That one does not grow: raises PlacementError at once if it can never hold the pipeline.
    """
    address = address or os.environ.get("RAY_ADDRESS", _OWN)
    if address != _OWN:
        ray.init(address=address, log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # actors are as quick as other processes
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as directory:
        ray.init(
            address=_OWN,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=directory,
        )
        try:
            _check_room_here(pipeline)
            yield
        finally:
            ray.shutdown()


def _check_room_here(pipeline: PipelineConfig) -> None:
    try:
        check_room(pipeline)
    except PlacementError as error:
        raise PlacementError(
            f"this machine cannot hold the pipeline, and no other cluster is named (--address, "
            f"RAY_ADDRESS): {error}"
        ) from error
