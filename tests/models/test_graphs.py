"""Steps on a GPU in one launch: the same to the last bit as kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from diffuspec.models.hidden_states import HiddenStates
from diffuspec.models.loading.load import load_model
from diffuspec.models.runner import CacheSettings, ModelRunner
from diffuspec.models.tensor_parallel.collectives import sum_of_ranks
from tests.support.gpu import NEEDS_GPU
from tests.support.models import MAX_POSITIONS, make_model, random_tokens, segment

pytestmark = NEEDS_GPU


@pytest.fixture(params=["bfloat16", "float32"])
def runner(request: pytest.FixtureRequest, save_target: Callable[[str], Path]) -> ModelRunner:
    path = save_target("qwen2")
    return load_model(path, device="cuda", dtype=request.param, max_sequences=2).runner


@pytest.mark.parametrize("num_rows", [1, 16, 17, 64, 65, 150])
def test_a_step_has_the_logits_of_kernels_launched_one_by_one(
    runner: ModelRunner, num_rows: int
) -> None:
    token_ids = random_tokens(MAX_POSITIONS).astype(np.int32)
    runner.feed(runner.cache.acquire("a", token_ids), token_ids[:100], 0)
    step = segment(0, 100, token_ids[100 : 100 + num_rows])
    captured = runner.forward([step])
    one_by_one = runner.forward([step], HiddenStates([0]))
    assert captured.shape == one_by_one.shape == (num_rows, runner.vocab_size)
    assert torch.equal(captured, one_by_one)
    assert torch.equal(runner.forward([step]), captured)


def test_a_step_of_many_requests_has_the_logits_of_each_alone(runner: ModelRunner) -> None:
    token_ids = random_tokens(MAX_POSITIONS).astype(np.int32)
    runner.feed(runner.cache.acquire("a", token_ids), token_ids[:100], 0)
    one, other = segment(0, 100, token_ids[100:250]), segment(1, 0, token_ids[:100])
    together = runner.forward([one, other])
    assert torch.equal(together[:150], runner.forward([one]))
    assert torch.equal(together[150:], runner.forward([other]))


def test_logits_of_a_step_outlive_the_next_step(runner: ModelRunner) -> None:
    first = runner.forward([segment(0, 0, random_tokens(5))])
    before = first.clone()
    runner.forward([segment(1, 0, random_tokens(9)[4:])])
    assert torch.equal(first, before)


@pytest.fixture
def only_rank() -> Iterator[None]:
    """Make this process the only one of a group: a machine with one GPU has no more."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("only_rank")
def test_sums_of_ranks_are_captured() -> None:
    class Summed(torch.nn.Module):
        def __init__(self, layer: torch.nn.Module) -> None:
            super().__init__()
            self.share = layer

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return sum_of_ranks(self.share(inputs), inputs.dtype)

    model = make_model("qwen2").cuda().bfloat16()
    for layer in model.model.layers:
        layer.mlp.down_proj = Summed(layer.mlp.down_proj)
    model.set_attn_implementation("diffuspec")
    runner = ModelRunner(model, MAX_POSITIONS, CacheSettings(5))
    runner.capture_steps()
    assert runner._graphs is not None
    step = segment(0, 0, random_tokens(5))
    assert torch.equal(runner.forward([step]), runner.forward([step], HiddenStates([0])))


def test_a_model_that_cannot_be_captured_is_launched_kernel_by_kernel(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def wait(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        inputs[0].sum().item()

    model = make_model("qwen2").cuda()
    model.model.layers[0].register_forward_pre_hook(wait)
    runner = ModelRunner(model, MAX_POSITIONS, CacheSettings(5))
    runner.capture_steps()
    assert "kernel by kernel" in caplog.text
    assert runner.forward([segment(0, 0, random_tokens(5))]).isfinite().all()
