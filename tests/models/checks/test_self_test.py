"""The self-test refuses models that would run but answer wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartForCausalLM,
    BertConfig,
    BertLMHeadModel,
    BlenderbotForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    XLMConfig,
    XLMWithLMHeadModel,
)

from diffuspec.core.devices import DType
from diffuspec.core.errors import ModelLoadError
from diffuspec.models.loading.load import load_model
from tests.support.models import MAX_POSITIONS, SHAPE, VOCAB_SIZE, edit_json

DECODER = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 48,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": MAX_POSITIONS,
    "is_decoder": True,
    "is_encoder_decoder": False,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [BartForCausalLM, BlenderbotForCausalLM], ids=["bart", "bb"])
def test_models_that_ignore_position_ids_are_refused(
    tmp_path: Path, kind: Any, dtype: DType
) -> None:
    """They would take the rows of any step for the beginning of a text."""
    torch.manual_seed(0)
    kind(kind.config_class(**DECODER)).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="does not place tokens by position_ids"):
        load_model(tmp_path, device="cpu", dtype=dtype)


def test_models_that_use_position_ids_pass_in_bfloat16_too(
    family_path: Callable[[str], Path], family: str
) -> None:
    load_model(family_path(family), device="cpu", dtype="bfloat16", max_sequences=1)


def test_bidirectional_models_are_refused(tmp_path: Path) -> None:
    shape = {key: SHAPE[key] for key in SHAPE if key not in ("initializer_range", "eos_token_id")}
    BertLMHeadModel(BertConfig(**shape, is_decoder=True)).save_pretrained(tmp_path)
    load_model(tmp_path, device="cpu")
    edit_json(tmp_path / "config.json", is_decoder=False)
    with pytest.raises(ModelLoadError, match="is not supported: its attention is not causal"):
        load_model(tmp_path, device="cpu")


def test_windows_given_by_the_mask_alone_are_refused(tmp_path: Path) -> None:
    config = Qwen2MoeConfig(
        **SHAPE,
        num_experts=2,
        num_experts_per_tok=1,
        use_sliding_window=True,
        sliding_window=8,
        layer_types=["sliding_attention"] * 3,
    )
    Qwen2MoeForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="a window of 8 in the mask alone"):
        load_model(tmp_path, device="cpu")
    edit_json(tmp_path / "config.json", layer_types=["full_attention"] * 3)
    load_model(tmp_path, device="cpu")


def test_layers_without_attention_are_refused(tmp_path: Path) -> None:
    """Convolutions mix neighbouring rows, which need not belong to one sequence."""
    types = ["full_attention", "full_attention", "conv"]
    Lfm2ForCausalLM(Lfm2Config(**SHAPE, layer_types=types)).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="only 2 of its layers are attention"):
        load_model(tmp_path, device="cpu")


def test_models_that_ask_for_the_type_of_their_weights_are_loaded(tmp_path: Path) -> None:
    config = HunYuanMoEV1Config(**SHAPE, head_dim=12, num_experts=2, moe_topk=1)
    HunYuanMoEV1ForCausalLM(config).save_pretrained(tmp_path)
    load_model(tmp_path, device="cpu", is_target=True)


def test_a_family_with_a_mask_of_its_own_is_no_diffusion_lm(tmp_path: Path) -> None:
    config = XLMConfig(vocab_size=VOCAB_SIZE, emb_dim=48, n_layers=2, n_heads=4)
    XLMWithLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="XLMWithLMHeadModel is not supported: it is not a st"):
        load_model(tmp_path, device="cpu", is_target=True)
