"""The CPU layers compute what transformers' own compute."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from diffuspec.models.layers import linear
from diffuspec.models.layers.linear import (
    FusedNorm,
    KernelLinear,
    OneDnnLinear,
    use_fast_layers,
)
from tests.support.models import FAMILIES, make_model
from tests.support.rounding import product_error


@torch.inference_mode()
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("num_rows", [1, 3, 4, 17, 40])
def test_logits_stay_the_same(family: str, num_rows: int) -> None:
    token_ids = torch.arange(num_rows)[None]
    model = make_model(family)
    expected = model(token_ids, use_cache=False).logits
    use_fast_layers(model)
    assert (model(token_ids, use_cache=False).logits - expected).abs().max() < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("is_intel", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2])
def test_a_layer_computes_the_same_on_any_processor(
    monkeypatch: pytest.MonkeyPatch, is_intel: bool, num_rows: int
) -> None:
    monkeypatch.setattr(linear, "is_intel", lambda: is_intel)
    layer, inputs = torch.nn.Linear(8, 12), torch.linspace(-1, 1, 8 * num_rows).view(1, -1, 8)
    found = OneDnnLinear(layer.weight, layer.bias)(inputs)[0].double()
    ones = torch.ones(num_rows, 1, dtype=torch.float64)
    rows = torch.cat([inputs[0].double(), ones], dim=1)
    weight = torch.cat([layer.weight, layer.bias[:, None]], dim=1).double()
    assert ((found - rows @ weight.T).abs() <= product_error(rows, weight)).all()


def test_every_layer_is_replaced() -> None:
    config = Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    use_fast_layers(model)
    kinds = [type(module) for module in model.modules()]
    assert torch.nn.Linear not in kinds
    own = kinds.count(KernelLinear) + kinds.count(OneDnnLinear)
    assert own == 2 * 2 + 1, "two of each layer stand alone, and the head"
    assert kinds.count(FusedNorm) == 2 * 2 + 1


@torch.inference_mode()
def test_norm_of_zeros_is_zero() -> None:
    norm = FusedNorm(torch.ones(8), 1e-6)
    assert torch.equal(norm(torch.zeros(2, 8)), torch.zeros(2, 8))


@torch.inference_mode()
def test_16_bits_are_computed_as_precisely_as_by_torch() -> None:
    token_ids = torch.arange(17)[None]
    model = make_model("llama")
    expected = model(token_ids, use_cache=False).logits
    rounded = model.bfloat16()(token_ids, use_cache=False).logits
    use_fast_layers(model)
    error = (model(token_ids, use_cache=False).logits - expected).abs().mean()
    assert error < 1.5 * (rounded - expected).abs().mean()


def test_a_model_of_two_precisions_is_left_alone() -> None:
    model = make_model("qwen2")
    model.lm_head.bfloat16()
    kinds = [type(module) for module in model.modules()]
    assert not use_fast_layers(model)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize("is_intel", [False, True])
def test_a_layer_shows_its_weights_to_families_that_ask_for_them(
    monkeypatch: pytest.MonkeyPatch, is_intel: bool
) -> None:
    monkeypatch.setattr(linear, "is_intel", lambda: is_intel)
    layer, norm = torch.nn.Linear(8, 12), FusedNorm(torch.full((8,), 2.0), 1e-6)
    assert torch.equal(OneDnnLinear(layer.weight, None).weight, layer.weight)
    assert torch.equal(norm.weight, torch.full((8,), 2.0))


def test_norms_that_take_more_than_their_input_are_left_alone() -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = torch.nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, inputs: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
            norm = FusedNorm(self.weight, self.variance_epsilon)(inputs)
            return norm if gate is None else norm * gate

    model = torch.nn.Sequential(Gated())
    use_fast_layers(model)
    assert isinstance(model[0], Gated)
