"""What an engine process takes of its machine."""

import asyncio
import socket

import pytest

from diffuspec.core.errors import WorkerError
from diffuspec.core.params import SamplingParams
from diffuspec.data_parallel import worker
from diffuspec.data_parallel.frames import FrameProtocol, frame, read_frame
from diffuspec.data_parallel.worker import Answer, Reports, Worker, own_gpu, own_processors
from diffuspec.rpc.messages.answers import generate_request
from diffuspec.rpc.messages.status import from_step_error
from diffuspec.telemetry import context
from diffuspec.v1 import engine_process_pb2 as messages
from tests.support.service import fake_engine


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


async def test_an_answer_has_the_key_and_the_salt_of_its_request():
    context.key_name.set("alice")
    sampling = SamplingParams(max_tokens=2, cache_salt="x")
    request = generate_request([1, 2, 3], sampling, None, "mine", (), 0)
    context.key_name.set("")
    async with fake_engine() as engine:
        begin = messages.BeginAnswer(number=1, request=request)
        frames = FrameProtocol(lambda data: None, lambda error: None)
        answer = Answer(engine, begin, Reports(frames))
        while not engine.num_requests:
            await asyncio.sleep(0)
        assert engine._coordinator is not None
        [admitted] = engine._coordinator.admission.alive
        assert (admitted.key_name, admitted.sampling.cache_salt) == ("alice", "x")
        answer.task.cancel()
        await asyncio.wait([answer.task])


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
