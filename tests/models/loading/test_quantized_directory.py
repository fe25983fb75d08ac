"""Directories with AWQ, GPTQ and compressed-tensors: their weights are those of the formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config

from diffuspec.core.drafter_config import AutoregressiveConfig, DiffuSpecConfig
from diffuspec.core.errors import ModelLoadError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest
from diffuspec.models.autoregressive import AutoregressiveDrafter
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.kernels import operations
from diffuspec.models.kernels.products import MatrixProduct
from diffuspec.models.layers.linear import KernelLinear
from diffuspec.models.loading.load import load_model
from diffuspec.models.loading.stored_model import check_can_stay_quantized, empty_model
from diffuspec.pairs.factory.start import load_target
from tests.support.checkpoints import MASK_TOKEN_ID, NUM_IDS
from tests.support.logits import PROMPT, logits_of
from tests.support.models import SHAPE, edit_json, make_dream
from tests.support.quantized_models import FILE, FORMATS, W8A8, save_quantized

TARGET = TargetInfo(NUM_IDS, 512, max_sequences=1, eos_token_ids=(256,))
REQUEST = DraftRequest(
    "a", PROMPT, 6, "path", max_nodes=32, drafter_weight=0.5, sampling=SamplingParams()
)


@pytest.mark.parametrize(
    ("form", "family", "config"),
    [
        *((form, "llama", {}) for form in FORMATS),
        ("AWQ", "qwen2", {}),  # which has biases
        ("AWQ", "qwen3", {}),  # and norms of heads
        ("AWQ", "llama", {"tie_word_embeddings": True}),
    ],
    ids=str,
)
def test_logits_are_those_of_the_same_weights_in_float32(
    form: str, family: str, config: dict[str, Any], tmp_path: Path
) -> None:
    plain = save_quantized(tmp_path / "model", FORMATS[form], family, **config)
    assert torch.equal(logits_of(tmp_path / "model"), logits_of(plain))


def test_layers_that_are_not_quantised_stay_in_16_bits(tmp_path: Path) -> None:
    plain = save_quantized(tmp_path / "model", FORMATS["GPTQ"], tie_word_embeddings=True)
    loaded = load_model(tmp_path / "model", device="cpu").runner.model
    head = loaded.get_output_embeddings()
    assert isinstance(head, KernelLinear) and isinstance(head.product, MatrixProduct)
    assert head.product.rows(torch.arange(2)).itemsize == 2
    expected = load_file(plain / FILE)["model.embed_tokens.weight"]
    assert torch.equal(loaded.get_input_embeddings().weight, expected)


def test_rows_are_rounded_where_the_format_rounds_them(tmp_path: Path) -> None:
    plain = save_quantized(tmp_path / "model", W8A8)
    weights = load_file(plain / FILE)
    runner = load_model(tmp_path / "model", device="cpu", is_exact=True).runner
    assert runner.is_exact
    layer = runner.model.model.layers[1].mlp.down_proj
    weight = weights["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(layer.weight, weight)
    rows = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(0))
    scales = rows.abs().amax(1, keepdim=True) / 127
    expected = (rows / scales).round() * scales @ weight.T
    torch.testing.assert_close(layer(rows), expected, rtol=1e-5, atol=1e-5)
    error = (logits_of(tmp_path / "model") - logits_of(plain)).norm() / logits_of(plain).norm()
    assert 0 < error < 0.1


async def test_a_causal_lm_drafts_with_quantised_weights(tmp_path: Path) -> None:
    plain = save_quantized(tmp_path / "model", FORMATS["W4A16"], "qwen2")
    drafts = []
    for path in (tmp_path / "model", plain):
        drafter = AutoregressiveDrafter.load(AutoregressiveConfig(path=path, device="cpu"), TARGET)
        drafts += await drafter.draft([REQUEST])
        drafter.close()
    assert drafts[0].tree == drafts[1].tree
    assert drafts[0].confidences == drafts[1].confidences


async def test_a_diffusion_lm_drafts_with_quantised_weights(tmp_path: Path) -> None:
    plain = save_quantized(tmp_path / "model", FORMATS["AWQ"], "qwen2")
    lattices = []
    for path in (tmp_path / "model", plain):
        edit_json(path / "config.json", mask_token_id=MASK_TOKEN_ID)
        make_dream(path / "config.json")
        drafter = DiffusionDrafter.load(DiffuSpecConfig(path=path, device="cpu"), TARGET)
        lattices += await drafter.lattices([REQUEST])
        drafter.close()
    assert np.array_equal(lattices[0].token_ids, lattices[1].token_ids)
    assert np.array_equal(lattices[0].logprobs, lattices[1].logprobs)


def test_nothing_is_trained_beside_quantised_weights(tmp_path: Path) -> None:
    save_quantized(tmp_path / "model", FORMATS["AWQ"])
    with pytest.raises(ModelLoadError, match="model has quantised weights, but training"):
        load_target(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("quantize_config.json", {"bits": 2}, "4 or 8 for GPTQ, got 2"),
        ("quant_config.json", {"w_bit": 8}, "4 for AWQ, got 8"),
    ],
)
def test_older_files_that_say_how_weights_are_quantised_are_read(
    name: str, values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    save_quantized(path, FORMATS["AWQ"])
    edit_json(path / "config.json", quantization_config=None)
    (path / name).write_text(json.dumps(values))
    with pytest.raises(ModelLoadError, match=f"{path}: {name}: bits must be {message}"):
        logits_of(path)


def change(path: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    weights = load_file(path / FILE)
    edit(weights)
    save_file(weights, path / FILE, {"format": "pt"})


LAYER = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("form", "edit", "message"),
    [
        (
            "GPTQ",
            lambda weights: weights[f"{LAYER}.g_idx"].copy_(weights[f"{LAYER}.g_idx"].flip(0) + 1),
            r"up_proj has its inputs in another order \(act-order.*g_idx.*desc_act: false",
        ),
        ("AWQ", lambda weights: weights.pop(f"{LAYER}.qzeros"), "up_proj has no qzeros"),
        (
            "AWQ",
            lambda weights: weights.update({f"{LAYER}.qweight": torch.zeros(7, 3).int()}),
            r"up_proj has qweight of the shape \[7, 3\], expected \[128, 32\]",
        ),
        (
            "W4A16",
            lambda weights: weights.update({f"{LAYER}.input_scale": torch.ones(1)}),
            "up_proj has tensors of no known use: input_scale",
        ),
        (
            "W4A16, zeros",
            lambda weights: weights.update(
                {f"{LAYER}.weight_scale": weights[f"{LAYER}.weight_scale"].float() * 1.0001}
            ),
            "up_proj has scales in float32 and zero points.*symmetrically",
        ),
        (
            "W4A16",
            lambda weights: weights.update(
                {f"{LAYER}.weight_scale": torch.ones(256, 3).bfloat16()}
            ),
            "up_proj has 3 groups for 128 inputs",
        ),
        ("AWQ", lambda weights: weights.update(stray=torch.ones(1)), "1 unexpected weights: stray"),
        ("AWQ", lambda weights: weights.pop("model.norm.weight"), "has no model.norm.weight"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tensors_that_do_not_fit_are_named(
    form: str,
    edit: Callable[[dict[str, torch.Tensor]], None],
    message: str,
    tmp_path: Path,
) -> None:
    save_quantized(tmp_path / "model", FORMATS[form])
    change(tmp_path / "model", edit)
    with pytest.raises(ModelLoadError, match=message) as caught:
        logits_of(tmp_path / "model")
    assert str(tmp_path / "model") in str(caught.value)


def test_scales_in_float32_stay_as_they_are(tmp_path: Path) -> None:
    plain = save_quantized(tmp_path / "model", FORMATS["W8A16"])
    stored, expected = load_file(tmp_path / "model" / FILE), load_file(plain / FILE)
    scales = stored[f"{LAYER}.weight_scale"].float() * 1.0001
    numbers = expected[f"{LAYER}.weight"] / stored[f"{LAYER}.weight_scale"].float()
    save_file(stored | {f"{LAYER}.weight_scale": scales}, tmp_path / "model" / FILE)
    save_file(expected | {f"{LAYER}.weight": numbers.round() * scales}, plain / FILE)
    assert torch.equal(logits_of(tmp_path / "model"), logits_of(plain))


@pytest.mark.parametrize(
    ("device", "num_ranks", "message"),
    [
        ("cuda", 1, "what is run on cuda by .* Triton, which do not run here.* or use another"),
        ("cuda", 2, "what cannot be spread over 2 ranks: use another"),
        ("cpu", 2, "what cannot be spread over 2 ranks: use another"),
    ],
)
def test_quantised_weights_are_run_by_our_kernels_on_one_device(
    device: str, num_ranks: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "can_run_on", lambda _: False)
    where, dtype = torch.device(device), torch.float32
    with pytest.raises(ModelLoadError, match=message):
        check_can_stay_quantized(Path("x"), "what", dtype, where, num_ranks, "use another")


def test_a_family_whose_embeddings_are_not_plain_is_refused() -> None:
    config = Gemma2Config(**SHAPE)
    with pytest.raises(ModelLoadError, match="gemma2 is not supported with quantised"):
        empty_model(Path("x"), config, torch.float32)
