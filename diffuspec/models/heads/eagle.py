"""The EAGLE head: one decoder layer that extrapolates the target's hidden states.

Li et al., EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty (arXiv 2401.15077).
Its row for a token takes the token's embedding and the previous token's hidden state, combined by
`fc`, and guesses the token's own hidden state. The target's head turns the guess into tokens, and
the next row uses it instead of a true state. It reads the checkpoints of SafeAILab/EAGLE, EAGLE-1
and 2 (`pytorch_model.bin`, or the same tensors as safetensors).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from transformers import LlamaConfig, Qwen2Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.interface import ATTENTION_NAME, Attention, attending
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.pages.store import CacheShape

PICKLED = ("pytorch_model.bin",)
_EAGLE_3 = ("d2t", "midlayer.self_attn.q_proj.weight")  # tensors that EAGLE-1 and 2 lack


class EagleHead(nn.Module):
    """The head alone; its tensors have the checkpoint's names."""

    def __init__(self, config: LlamaConfig | Qwen2Config, has_fc_bias: bool) -> None:
        super().__init__()
        config._attn_implementation = ATTENTION_NAME
        size = config.hidden_size
        layer: Any = Qwen2DecoderLayer if isinstance(config, Qwen2Config) else LlamaDecoderLayer
        self.config = config
        self.fc = nn.Linear(2 * size, size, bias=has_fc_bias)
        self.layers = nn.ModuleList([layer(config, 0)])
        self.layers[0].input_layernorm = nn.Identity()
        self.rotary_emb = rotary_of(config)

    @classmethod
    def load(cls, path: Path, target: TargetLayers) -> Self:
        """Load a checkpoint that was trained for the target. Raises ModelLoadError."""
        checkpoint = HeadCheckpoint.read(path, PICKLED)
        weights = checkpoint.weights
        if any(name in weights for name in _EAGLE_3):
            raise ModelLoadError(
                f"{path} is an EAGLE-3 head: use a drafter of the kind eagle3; eagle and eagle2 "
                "are for EAGLE-1 and 2"
            )
        if checkpoint.number("num_hidden_layers", default=1) != 1:
            raise ModelLoadError(f"{path}: an EAGLE head has one layer, config.json says otherwise")
        if "embed_tokens.weight" in weights:  # the target's own embeddings are used
            checkpoint.take("embed_tokens.weight", target.vocab_size, target.hidden_size)
        has_bias = "layers.0.self_attn.q_proj.bias" in weights
        model = cls(_layer_config(checkpoint, target, has_bias), "fc.bias" in weights)
        checkpoint.fill(model)
        return target.place_decoder(model, rotary_of(model.config))

    @property
    def cache_shape(self) -> CacheShape:
        return cache_shape_of(self.config, self.layers[0])

    def embed(self, token_ids: torch.Tensor, target: TargetLayers) -> torch.Tensor:
        """Return the target's embeddings of tokens, [T, H]."""
        return target.embed(token_ids)

    def logits(self, outputs: torch.Tensor, target: TargetLayers) -> torch.Tensor:
        """Return the target's logits of guessed states, [R, V] float32."""
        return target.logits(outputs)

    def forward(
        self,
        embedded: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
    ) -> torch.Tensor:
        """Map tokens' embeddings and the states before them to guessed states, all [T, H].

        positions [T] are those of the states.
        """
        hidden = self.fc(torch.cat([embedded, states], dim=-1)).unsqueeze(0)
        angles = self.rotary_emb(hidden, positions.unsqueeze(0))
        with attending(attention):
            hidden = self.layers[0](hidden, position_embeddings=angles)
        output: torch.Tensor = hidden[0]
        return output


def cache_shape_of(config: LlamaConfig | Qwen2Config, layer: Any) -> CacheShape:
    """Return the dimensions of the keys and values of a head of one decoder layer."""
    num_heads = config.num_key_value_heads or config.num_attention_heads
    return CacheShape(1, num_heads, layer.self_attn.head_dim)


def rotary_of(config: LlamaConfig | Qwen2Config) -> nn.Module:
    """Return the rotary embedding of a head of one decoder layer."""
    return LlamaRotaryEmbedding(config)  # type: ignore[arg-type]


def _layer_config(
    checkpoint: HeadCheckpoint, target: TargetLayers, has_bias: bool
) -> LlamaConfig | Qwen2Config:
    """Return the configuration of its layer: Llama's or, with biases, Qwen2's."""
    fields = {k: v for k, v in checkpoint.config.items() if k not in ("architectures", "dtype")}
    checkpoint.check_size("hidden_size", fields.get("hidden_size"), target.hidden_size)
    family = Qwen2Config if has_bias else LlamaConfig
    try:
        return family(**{**fields, "num_hidden_layers": 1, "layer_types": None})
    except Exception as error:  # for example values of the wrong type
        raise ModelLoadError(f"{checkpoint.path}: config.json cannot be used: {error!r}") from error
