"""The CPU layers compute what transformers' own compute."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from diffuspec.models.kernels import operations
from diffuspec.models.kernels.products import MatrixProduct
from diffuspec.models.layers.linear import FusedNorm, KernelLinear, fastest_linear, use_fast_layers
from tests.support.gpu import DEVICES
from tests.support.models import FAMILIES, make_model


@torch.inference_mode()
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("num_rows", [1, 3, 4, 17, 40])
def test_logits_stay_the_same(family: str, num_rows: int) -> None:
    token_ids = torch.arange(num_rows)[None]
    model = make_model(family)
    expected = model(token_ids, use_cache=False).logits
    use_fast_layers(model)
    assert (model(token_ids, use_cache=False).logits - expected).abs().max() < 1e-4


def test_every_layer_is_replaced() -> None:
    config = Qwen2Config(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    use_fast_layers(model)
    kinds = [type(module) for module in model.modules()]
    assert torch.nn.Linear not in kinds
    assert kinds.count(KernelLinear) == 2 * 2 + 1, "two of each layer stand alone, and the head"
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


@torch.inference_mode()
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_partial_sums_are_not_rounded_to_16_bits(device: str, has_bias: bool) -> None:
    random = torch.Generator().manual_seed(0)
    inputs, weight, bias = (
        torch.randn(*shape, generator=random).to(device, torch.bfloat16)
        for shape in ((1, 17, 96), (64, 96), (64,))
    )
    layer = fastest_linear(weight, bias if has_bias else None, True, False, is_partial=True)
    outputs = layer(inputs)
    expected = inputs.double() @ weight.double().T + (bias.double() if has_bias else 0)
    assert outputs.dtype == torch.float32
    assert (outputs - expected).abs().max() < 1e-4  # a rounded sum of 20 may be wrong by 0.06
    assert layer.is_exact and torch.equal(layer(inputs[:, 5:6]), outputs[:, 5:6])


def test_a_model_of_two_precisions_is_left_alone() -> None:
    model = make_model("qwen2")
    model.lm_head.bfloat16()
    kinds = [type(module) for module in model.modules()]
    assert not use_fast_layers(model)
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize("is_without", ["kernels", "kernels for its type"])
def test_a_model_without_our_kernels_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, is_without: str
) -> None:
    model = make_model("qwen2")
    if is_without == "kernels":
        monkeypatch.setattr(operations, "is_available", False)
    else:
        model.double()
    kinds = [type(module) for module in model.modules()]
    assert not use_fast_layers(model)
    assert [type(module) for module in model.modules()] == kinds


def test_a_layer_shows_its_weights_to_families_that_ask_for_them() -> None:
    layer, norm = torch.nn.Linear(8, 12), FusedNorm(torch.full((8,), 2.0), 1e-6)
    product = MatrixProduct(layer.weight.detach(), None)
    assert torch.equal(KernelLinear(product).weight, layer.weight)
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
