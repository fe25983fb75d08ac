"""Engine processes that are started again only when a test says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from diffuspec.data_parallel.process import EngineProcess
from diffuspec.v1 import engine_process_pb2 as messages


@contextmanager
def held_restarts() -> Iterator[threading.Event]:
    """Hold the start of processes until the event is set, or the context ends."""
    released, start = threading.Event(), EngineProcess.start

    def start_when_released(load: messages.LoadEngine) -> EngineProcess:
        released.wait()
        return start(load)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineProcess, "start", start_when_released)
        try:
            yield released
        finally:
            released.set()
