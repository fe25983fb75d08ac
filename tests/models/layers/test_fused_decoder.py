"""Decoder layers of few operations compute what transformers' own compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from diffuspec.algorithm.draft_tree import ancestor_mask
from diffuspec.models.attention.packed import PackedBatch
from diffuspec.models.attention.segment import Segment
from diffuspec.models.layers.fused_decoder import (
    FusedDecoderLayer,
    FusedForward,
    use_fused_forward,
    use_fused_layers,
)
from diffuspec.models.layers.linear import use_fast_layers
from diffuspec.models.runner import CacheSettings, ModelRunner
from tests.support.models import FAMILIES, fixed_table, make_model

REPLACED = {"llama", "mistral", "qwen2", "qwen2 with windows", "qwen3"}


def is_replaced(model: torch.nn.Module) -> bool:
    return any(isinstance(module, FusedDecoderLayer) for module in model.modules())


@torch.inference_mode()
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logits_stay_the_same(family: str) -> None:
    model = make_model(family)
    model.set_attn_implementation("diffuspec")
    segment = Segment(fixed_table(0), 0, np.arange(90), np.arange(90), "causal", np.arange(90))
    expected = ModelRunner(model, 100, CacheSettings(5)).forward([segment])
    use_fast_layers(model)
    use_fused_layers(model.base_model)
    assert is_replaced(model) == (family in REPLACED)
    assert (
        ModelRunner(model, 100, CacheSettings(5)).forward([segment]) - expected
    ).abs().max() < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", sorted(REPLACED))
def test_a_model_as_one_operation_computes_the_same_bits(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(family).to(dtype)
    model.set_attn_implementation("diffuspec")
    use_fast_layers(model)
    use_fused_layers(model.base_model)
    use_fused_forward(model)
    assert isinstance(model.forward, FusedForward)
    tree = ancestor_mask([-1, 0, 1, 0, 3])
    steps = (
        [Segment(fixed_table(0), 0, np.arange(70), np.arange(70), "causal", np.arange(70))],
        [
            Segment(fixed_table(1), 0, np.arange(5), np.arange(5), 3, np.arange(5)),
            Segment(fixed_table(0), 70, np.arange(5), 69 + tree.sum(axis=1), tree, np.arange(5)),
            Segment(fixed_table(2), 0, np.arange(9), np.arange(9), "full", np.arange(9)),
        ],
    )
    as_one = ModelRunner(model, 100, CacheSettings(15))
    expected = [as_one.forward(segments) for segments in steps]
    monkeypatch.setattr(PackedBatch, "pieces", None)
    in_parts = ModelRunner(model, 100, CacheSettings(15))
    for segments, logits in zip(steps, expected, strict=True):
        assert torch.equal(in_parts.forward(segments), logits)
    for mine, other in zip(as_one.cache.store.layer(0), in_parts.cache.store.layer(0), strict=True):
        assert torch.equal(mine, other)


def test_a_layer_that_computes_something_else_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model("llama")
    model.set_attn_implementation("diffuspec")
    use_fast_layers(model)
    kind = type(model.model.layers[0])
    forward = kind.forward
    monkeypatch.setattr(kind, "forward", lambda *args, **kwargs: 1.01 * forward(*args, **kwargs))
    use_fused_layers(model.base_model)
    assert not is_replaced(model)


def test_one_output_that_is_rounded_in_16_bits_does_not_keep_a_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model("llama").to(torch.bfloat16)
    model.set_attn_implementation("diffuspec")
    use_fast_layers(model)
    kind = type(model.model.layers[0])
    forward = kind.forward

    def rounded(*args: Any, **kwargs: Any) -> torch.Tensor:
        outputs: torch.Tensor = forward(*args, **kwargs)
        outputs[0, 0, 0] += 0.06 * outputs.abs().max()
        return outputs

    monkeypatch.setattr(kind, "forward", rounded)
    use_fused_layers(model.base_model)
    assert is_replaced(model)
