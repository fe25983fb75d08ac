"""Heads share the target's embeddings and head, also where a process holds a part of these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from diffuspec.core.config import TargetConfig
from diffuspec.core.errors import ModelLoadError
from diffuspec.models.heads.target_layers import layers_of, target_layers
from diffuspec.models.target import CausalTarget


@dataclass
class OneOfTwoRanks:
    model: Any
    num_ranks: int = 2


def test_a_target_spread_over_ranks_has_its_layers_read_whole(
    target_path: Callable[[str], Path],
) -> None:
    path = target_path("qwen2")
    target = CausalTarget.load(TargetConfig(path=path, device="cpu"))
    whole = layers_of(target.model)
    rank = cast(Any, OneOfTwoRanks(target.model))
    read = target_layers(rank, path)
    assert read.embed is not whole.embed and target_layers(target, None).embed is whole.embed
    ids, states = torch.tensor([3, 200]), torch.randn(3, 32)
    assert torch.equal(read.embed(ids), whole.embed(ids))
    assert torch.allclose(read.logits(states), whole.logits(states), atol=1e-5)
    with pytest.raises(ModelLoadError, match="need the directory of a target"):
        target_layers(rank, None)
    target.close()
