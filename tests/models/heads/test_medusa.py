"""Medusa heads compute what their authors' formula says, and checkpoints are checked."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from diffuspec.algorithm.sampling import gumbel_noise
from diffuspec.core.errors import ModelLoadError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest
from diffuspec.models.heads.medusa import MedusaDraftModel, MedusaHeads
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.target import CausalTarget
from tests.support.heads import save_medusa
from tests.support.models import edit_json

H = 32  # the hidden size of the random targets
GREEDY = SamplingParams()


def request(sampling: SamplingParams = GREEDY, num_tokens: int = 3) -> DraftRequest:
    prefix = np.arange(3, 3 + num_tokens, dtype=np.int32)
    return DraftRequest("a", prefix, 4, "best_first", 64, 0.5, sampling)


@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("has_own_head", [True, False])
def test_logits_follow_the_formula(
    layers: TargetLayers, tmp_path: Path, num_blocks: int, has_own_head: bool
) -> None:
    vocab_size = layers.vocab_size if has_own_head else None
    weights = save_medusa(tmp_path, H, vocab_size, num_blocks=num_blocks)
    heads = MedusaHeads.load(tmp_path, layers)
    states = torch.randn(3, H)
    outputs = heads(states)
    assert heads.shares_head is not has_own_head
    for head in range(4):
        x = states
        for block in range(num_blocks):
            name = f"{head}.{block}.linear"
            y = x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
            x = x + y * torch.sigmoid(y)
        if has_own_head:
            x = x @ weights[f"{head}.{num_blocks}.weight"].T
        torch.testing.assert_close(outputs[:, head], x, atol=1e-4, rtol=1e-4)


def test_candidates_are_ranked_with_the_noise_of_their_positions(
    target: CausalTarget, layers: TargetLayers, tmp_path: Path
) -> None:
    save_medusa(tmp_path, H, layers.vocab_size)
    heads = MedusaHeads.load(tmp_path, layers)
    info = replace(target.info, vocab_size=100)
    model = MedusaDraftModel(heads, layers, info)
    drawn = SamplingParams(temperature=0.8, seed=4)
    states = torch.randn(2, H)
    found = model.candidates([request(), request(drawn, 9)], list(states), 10)
    logits = heads(states)[..., :100]
    for head in range(4):
        greedy = logits[0, head].log_softmax(-1)
        noise = gumbel_noise(4, [9 + head], 100, "cpu")[0]
        noisy = (logits[1, head] / 0.8 + noise).log_softmax(-1)
        for row, expected in ((found[0][head], greedy), (found[1][head], noisy)):
            values, ids = expected.topk(10)
            assert [token_id for token_id, _ in row] == ids.tolist()
            assert [one for _, one in row] == pytest.approx(values.tolist(), abs=1e-4)


def test_tokens_that_are_never_drawn_are_no_candidates(
    target: CausalTarget, layers: TargetLayers, tmp_path: Path
) -> None:
    save_medusa(tmp_path, H, None)
    model = MedusaDraftModel(MedusaHeads.load(tmp_path, layers), layers, target.info)
    drawn = SamplingParams(temperature=0.8, seed=4, top_k=3)
    [heads] = model.candidates([request(drawn)], [torch.randn(H)], 10)
    assert [len(row) for row in heads] == [3] * 4
    assert all(token_id < target.info.vocab_size for row in heads for token_id, _ in row)


def test_a_checkpoint_of_another_target_is_refused(layers: TargetLayers, tmp_path: Path) -> None:
    save_medusa(tmp_path / "wide", 64, layers.vocab_size)
    with pytest.raises(ModelLoadError, match=r"another target: 0.0.linear.weight .* \[64, 64\]"):
        MedusaHeads.load(tmp_path / "wide", layers)
    save_medusa(tmp_path / "words", H, 32000)
    with pytest.raises(ModelLoadError, match=r"\[32000, 32\], for this target .* \[\d+, 32\]"):
        MedusaHeads.load(tmp_path / "words", layers)


class Command:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._path),)


def test_what_is_no_checkpoint_is_refused(layers: TargetLayers, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        MedusaHeads.load(tmp_path / "nowhere", layers)
    with pytest.raises(ModelLoadError, match=r"has no config.json"):
        MedusaHeads.load(tmp_path, layers)
    save_medusa(tmp_path, H, None)
    edit_json(tmp_path / "config.json", medusa_num_heads=5)
    with pytest.raises(ModelLoadError, match=r"no weights 4.0.linear.weight"):
        MedusaHeads.load(tmp_path, layers)
    edit_json(tmp_path / "config.json", medusa_num_heads=0)
    with pytest.raises(ModelLoadError, match="medusa_num_heads must be 1 or more, got 0"):
        MedusaHeads.load(tmp_path, layers)
    file = tmp_path / "medusa_lm_head.pt"
    torch.save({"0": Path("code")}, file)
    with pytest.raises(ModelLoadError, match="cannot be read as tensors alone"):
        MedusaHeads.load(tmp_path, layers)
    torch.save({"0": Command(tmp_path / "made")}, file)
    with pytest.raises(ModelLoadError, match="cannot be read as tensors alone"):
        MedusaHeads.load(tmp_path, layers)
    assert not (tmp_path / "made").exists()
    torch.save([torch.zeros(1)], file)
    with pytest.raises(ModelLoadError, match="holds a list"):
        MedusaHeads.load(tmp_path, layers)
    file.unlink()
    with pytest.raises(ModelLoadError, match=r"has no weights: model.safetensors or medusa"):
        MedusaHeads.load(tmp_path, layers)


def test_safetensors_are_read_where_there_are_both(layers: TargetLayers, tmp_path: Path) -> None:
    weights = save_medusa(tmp_path, H, None)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"damaged")
    save_file(weights, tmp_path / "model.safetensors")
    assert len(MedusaHeads.load(tmp_path, layers).heads) == 4
