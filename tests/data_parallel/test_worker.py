"""What an engine process takes of its machine."""

import asyncio
import socket

import pytest

from diffuspec.core.errors import WorkerError
from diffuspec.data_parallel import worker
from diffuspec.data_parallel.frames import frame, read_frame
from diffuspec.data_parallel.worker import Worker, own_gpu, own_processors
from diffuspec.rpc.messages.status import from_step_error
from diffuspec.v1 import engine_process_pb2 as messages


@pytest.mark.parametrize(
    ("index", "num_gpus", "visible", "own"),
    [
        (1, 0, "", None),
        (1, 1, "3", None),
        (1, 4, "", "1"),
        (5, 4, "", "1"),
        (1, 2, "6, 7", "7"),
        (2, 2, "GPU-a,GPU-b", "GPU-a"),
    ],
)
def test_processes_take_the_gpus_by_turns(index: int, num_gpus: int, visible: str, own: str | None):
    assert own_gpu(index, num_gpus, visible) == own


@pytest.mark.parametrize(
    ("index", "num_processes", "own"),
    [(0, 2, [2, 3]), (1, 2, [4, 5]), (2, 5, [4]), (3, 6, [2, 3, 4, 5, 7])],
)
def test_processes_share_the_processors(index: int, num_processes: int, own: list[int]):
    assert own_processors(index, num_processes, [2, 3, 4, 5, 7]) == own


async def test_a_load_that_fails_in_an_unforeseen_way_is_replied_to(monkeypatch):
    def fail(load: messages.LoadEngine) -> None:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(worker, "load_engine", fail)
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(Worker().serve(theirs))
    load = messages.LoadEngine(num_processes=1)
    ours.sendall(frame(messages.EngineCommand(load=load).SerializeToString()))
    data = await asyncio.wait_for(asyncio.to_thread(read_frame, ours), 10.0)
    [reply] = messages.EngineReport.FromString(data).replies
    assert isinstance(from_step_error(reply.error), WorkerError)
    ours.close()
    await serving
