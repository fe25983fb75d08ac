"""Random draft heads for a target, saved as their authors' checkpoints are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel


def save_medusa(
    path: Path, hidden_size: int, vocab_size: int | None, num_heads: int = 4, num_blocks: int = 1
) -> dict[str, torch.Tensor]:
    """Save heads as FasterDecoding/Medusa does, and return their tensors.

    vocab_size: None leaves the linear layers out, so that the heads share the target's.
    """
    torch.manual_seed(3)
    weights: dict[str, torch.Tensor] = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            weights[f"{head}.{block}.linear.weight"] = torch.randn(hidden_size, hidden_size) / 5
            weights[f"{head}.{block}.linear.bias"] = torch.randn(hidden_size)
        if vocab_size is not None:
            weights[f"{head}.{num_blocks}.weight"] = torch.randn(vocab_size, hidden_size) / 5
    config = {"medusa_num_heads": num_heads, "medusa_num_layers": num_blocks}
    _save(path, config, weights, "medusa_lm_head.pt")
    return weights


def save_hydra(
    path: Path, hidden_size: int, vocab_size: int | None, num_heads: int = 4, num_blocks: int = 1
) -> dict[str, torch.Tensor]:
    """Save grounded heads as zankner/Hydra does, and return their tensors; see save_medusa."""
    torch.manual_seed(4)
    weights: dict[str, torch.Tensor] = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            name, width = f"hydra_mlp.{head}.{block}", hidden_size * (1 if block else head + 2)
            for layer in ("linear",) if block else ("linear", "res_connection"):
                weights[f"{name}.{layer}.weight"] = torch.randn(hidden_size, width) / width**0.5
                weights[f"{name}.{layer}.bias"] = torch.randn(hidden_size)
        if vocab_size is not None:
            weights[f"hydra_lm_head.{head}.weight"] = torch.randn(vocab_size, hidden_size) / 5
            weights[f"hydra_lm_head.{head}.bias"] = torch.randn(vocab_size)
    config = {
        "hydra_num_heads": num_heads,
        "hydra_num_layers": num_blocks,
        "hydra_head_arch": "mlp",
        "grounded_heads": True,
    }
    _save(path, config, weights, "hydra_lm_head.pt")
    return weights


EAGLE_SIZES = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}


def save_eagle(
    path: Path, hidden_size: int, vocab_size: int, has_biases: bool = False
) -> dict[str, torch.Tensor]:
    """Save a head as SafeAILab/EAGLE does, and return its tensors."""
    torch.manual_seed(5)
    width, inner = hidden_size // 2, EAGLE_SIZES["intermediate_size"]
    shapes = {
        "q_proj": (hidden_size, hidden_size),
        "k_proj": (width, hidden_size),
        "v_proj": (width, hidden_size),
    }
    weights = {"fc.weight": torch.randn(hidden_size, 2 * hidden_size) / 8}
    weights["embed_tokens.weight"] = torch.randn(vocab_size, hidden_size)
    for name, shape in shapes.items():
        weights[f"layers.0.self_attn.{name}.weight"] = torch.randn(*shape) / 4
        if has_biases:
            weights[f"layers.0.self_attn.{name}.bias"] = torch.randn(shape[0])
            weights["fc.bias"] = torch.randn(hidden_size)
    weights["layers.0.self_attn.o_proj.weight"] = torch.randn(hidden_size, hidden_size) / 5
    weights["layers.0.mlp.gate_proj.weight"] = torch.randn(inner, hidden_size) / 5
    weights["layers.0.mlp.up_proj.weight"] = torch.randn(inner, hidden_size) / 5
    weights["layers.0.mlp.down_proj.weight"] = torch.randn(hidden_size, inner) / 5
    weights["layers.0.post_attention_layernorm.weight"] = torch.rand(hidden_size) + 0.5
    config = {
        **EAGLE_SIZES,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000.0,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
    }
    _save(path, config, weights, "pytorch_model.bin")
    return weights


EAGLE3_COLUMNS = 40  # ids that a random EAGLE-3 head can draft: every sixth of the target's


def save_eagle3(
    path: Path, hidden_size: int, vocab_size: int, dialect: str = "eagle", **config: Any
) -> dict[str, torch.Tensor]:
    """Save a head that reads the layers 0, 1 and 1, and return its tensors by vLLM's names.

    dialect: eagle, as SafeAILab/EAGLE does it, or speculators, with embeddings of its own.
    """
    torch.manual_seed(7)
    size, inner = hidden_size, EAGLE_SIZES["intermediate_size"]
    shapes = {
        "fc": (size, 3 * size),
        "layers.0.self_attn.q_proj": (size, 2 * size),
        "layers.0.self_attn.k_proj": (size // 2, 2 * size),
        "layers.0.self_attn.v_proj": (size // 2, 2 * size),
        "layers.0.self_attn.o_proj": (size, size),
        "layers.0.mlp.gate_proj": (inner, size),
        "layers.0.mlp.up_proj": (inner, size),
        "layers.0.mlp.down_proj": (size, inner),
        "lm_head": (EAGLE3_COLUMNS, size),
    }
    weights = {f"{name}.weight": torch.randn(*shape) / 5 for name, shape in shapes.items()}
    norms = ["layers.0.hidden_norm", "layers.0.input_layernorm", "norm"]
    for name in (*norms, "layers.0.post_attention_layernorm"):
        weights[f"{name}.weight"] = torch.rand(size) + 0.5
    if config.get("norm_before_fc"):
        weights["input_norm.weight"] = torch.rand(3 * size) + 0.5
    ids = 6 * torch.arange(EAGLE3_COLUMNS)
    weights["d2t"] = ids - torch.arange(EAGLE3_COLUMNS)
    weights["t2d"] = torch.isin(torch.arange(vocab_size), ids)
    layer = {
        **EAGLE_SIZES,
        "model_type": "llama",
        "hidden_size": size,
        "vocab_size": vocab_size,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-06,
        "rope_theta": 5000.0,
        "max_position_embeddings": 512,
        "hidden_act": "silu",
    }
    said: dict[str, Any] = {"draft_vocab_size": EAGLE3_COLUMNS}
    stored = weights
    if dialect == "eagle":
        said |= {**layer, "architectures": ["LlamaForCausalLMEagle3"]}
        said["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 1]}
        stored = {name.replace("layers.0.", "midlayer."): x for name, x in weights.items()}
    else:
        weights["embed_tokens.weight"] = torch.randn(vocab_size, size)
        said |= {"speculators_model_type": "eagle3", "transformer_layer_config": layer}
        said["eagle_aux_hidden_state_layer_ids"] = [1, 2, 2]
    _save(path, said | config, stored, "pytorch_model.bin")
    return weights


NOTHING: Mapping[str, Any] = {}
DFLASH_SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
DFLASH_BLOCK, DFLASH_MASK = 6, 259


def dflash_model(**config: Any) -> MuseGlimmerAssistantModel:
    """Return a random drafter as transformers has it; it reads both layers of a target."""
    torch.manual_seed(6)
    settings: dict[str, Any] = {
        **DFLASH_SIZES,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 9,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "initializer_range": 0.3,
        "block_size": DFLASH_BLOCK,
        "mask_token_id": DFLASH_MASK,
        "target_layer_ids": [0, 1],
    }
    model = MuseGlimmerAssistantModel(MuseGlimmerAssistantConfig(**settings | config))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data = torch.rand_like(parameter) + 0.5
    return model.eval()


def save_dflash(
    path: Path, shape: Mapping[str, Any] = NOTHING, **config: Any
) -> dict[str, torch.Tensor]:
    """Save a random drafter as z-lab/dflash does, and return its tensors.

    shape: what the model has instead of its defaults; config: what config.json says instead.
    """
    names = {
        "encoder.fc.weight": "fc.weight",
        "encoder.output_norm_enc.weight": "hidden_norm.weight",
    }
    model = dflash_model(**shape)
    weights = {names.get(name, name): tensor for name, tensor in model.state_dict().items()}
    own = ("block_size", "mask_token_id", "target_layer_ids")
    said = {**model.config.to_dict(), "model_type": "qwen3", "num_target_layers": 2}
    said["dflash_config"] = {name: said.pop(name) for name in own}
    said |= {"architectures": ["DFlashDraftModel"], "is_causal": False, "vocab_size": 264}
    said["sliding_window"] += 1  # transformers' model sees as many tokens before a row, and itself
    _save(path, said | config, weights, "pytorch_model.bin")
    return weights


def _save(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], name: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    torch.save(weights, path / name)
