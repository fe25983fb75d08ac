"""A model over two ranks decodes as it does in one process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.checks import exactness
from diffuspec.models.target import CausalTarget
from diffuspec.models.tensor_parallel.layers import check_divides, sharding_options, spreading_over
from diffuspec.models.tensor_parallel.lockstep import LockstepTarget
from diffuspec.pairs.tiny import TARGET
from tests.models.tensor_parallel.follower import config
from tests.models.tensor_parallel.processes import Follower, Ranks, save_family
from tests.models.test_target import PROMPT, SAMPLED, decode, request, with_wrong_branches
from tests.support.models import make_model

pytestmark = pytest.mark.process


async def _decode_with_trees(target: LockstepTarget, truth: list[int]) -> list[int]:
    rng = np.random.default_rng(2)
    token_ids = list(PROMPT)
    while len(token_ids) < len(truth):
        tree = with_wrong_branches(truth[len(token_ids) :], rng)
        [verdict] = await target.verify([request(token_ids, tree, SAMPLED)])
        token_ids += verdict.token_ids
    return token_ids[: len(truth)]


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "phi3", "gemma2", "tiny"])
def test_two_ranks_decode_as_one_process_does(
    tmp_path: Path, follower: Follower, family: str
) -> None:
    settings = config(TARGET if family == "tiny" else save_family(tmp_path, family), exact=True)
    alone = CausalTarget.load(settings)
    truth = asyncio.run(decode(alone, SAMPLED, 12))
    alone.close()
    with Ranks(settings, [follower]) as ranks:
        assert asyncio.run(_decode_with_trees(ranks.target, truth)) == truth
        assert ranks.share.runner.is_exact
        assert ranks.share.runner.takes_trees == (family != "gemma2")  # embeds as we do not
    assert follower.hear() == "left"


def test_ranks_agree_on_a_trial_that_fails_on_one_of_them(
    tmp_path: Path, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness, "_attends_rows_alone", lambda _: False)  # of this rank
    with Ranks(config(save_family(tmp_path, "qwen2"), exact=True), [follower]) as ranks:
        runner = ranks.share.runner
        assert runner.is_exact and not runner.takes_trees, "every step has one shape"
        assert len(asyncio.run(decode(ranks.target, SAMPLED, 2))) == len(PROMPT) + 2
    assert follower.hear() == "left"


def test_sizes_that_do_not_divide_are_named_with_those_that_do() -> None:
    model_config = make_model("qwen2").config  # 4 heads, 2 for keys and values, 64 columns, 120 ids
    check_divides(Path("target"), model_config, 2)
    with pytest.raises(ModelLoadError, match="over 4 ranks: it has 2 key/value heads; 1, 2 ranks"):
        check_divides(Path("target"), model_config, 4)
    with pytest.raises(ModelLoadError, match="4 attention heads, 2 key/value heads, 64 inner"):
        check_divides(Path("target"), model_config, 7)


def test_families_without_a_plan_are_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"opt cannot be spread over 2 ranks: .* no tensor-pa"):
        sharding_options(Path("target"), make_model("opt").config, 2)


def test_ranks_on_a_cpu_leave_the_accelerator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda: gpu)
    with spreading_over(cpu):
        assert torch._C._get_accelerator() == cpu
    with spreading_over(gpu):
        assert torch._C._get_accelerator() == gpu
    assert torch._C._get_accelerator() == gpu
