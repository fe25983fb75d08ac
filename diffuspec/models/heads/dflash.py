"""The DFlash drafter: a block-diffusion model that reads the target's hidden states.

Chen et al., DFlash: Block Diffusion for Flash Speculative Decoding (arXiv 2602.06036). Its layers
are those of Qwen3. A block consists of the last token and masks; every row guesses the token at its
own position. The tokens before the block do not pass through these layers: `fc` combines the hidden
states of some of the target's layers at each token, and every layer here computes its key and value
from the result.

A checkpoint's config.json has one of three layouts:

- z-lab/dflash, also read by vLLM and SGLang: the keys of a Qwen3 model, and DFlash's own among them
  or below `dflash_config`.
- vLLM's speculators: the model's keys below `transformer_layer_config`.
- transformers: all keys on one level, and different tensor names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.interface import ATTENTION_NAME, Attention, attending
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.own_head import OwnHead
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.pages.store import CacheShape

PICKLED = ("pytorch_model.bin",)
_OTHER_NAMES = {  # names of tensors in transformers' own model: our names
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}
_TRANSFORMERS_TYPE = "muse_glimmer_assistant"
# Keys of variants that compute something else, each with the value that matches the paper.
_OTHER_FUNCTIONS = {
    "input_embedding_scale": 1.0,
    "output_multiplier": 1.0,
    "final_logit_softcapping": None,
    "sample_from_anchor": False,
    "selector_rank": None,
}


@dataclass(frozen=True, slots=True)
class DFlashSettings:
    """A drafter's sizes. Layers are counted from 0."""

    model: Qwen3Config
    target_layer_ids: tuple[int, ...]  # the target's layers whose outputs the drafter reads
    block_size: int  # rows of a block: the last token and masks
    mask_token_id: int
    causal_layers: tuple[bool, ...]  # True for layers whose rows do not see later rows of a block

    @classmethod
    def read(cls, checkpoint: HeadCheckpoint, target: TargetLayers) -> Self:
        """Read config.json. Raises ModelLoadError, also if it was made for another target."""
        raw = checkpoint.config
        own = raw | checkpoint.section("dflash_config")
        fields = {**raw, **checkpoint.section("transformer_layer_config")}
        for key, plain in _OTHER_FUNCTIONS.items():
            if own.get(key, plain) not in (plain, None):
                raise ModelLoadError(f"{checkpoint.path}: {key} is not supported, got {own[key]!r}")
        model = _model_config(checkpoint, fields, target)
        found = HeadCheckpoint(checkpoint.path, own, {})
        settings = cls(
            model,
            tuple(_layer_ids(own, target.num_layers, model.num_hidden_layers)),
            found.number("block_size", default=16),
            found.number("mask_token_id"),
            tuple(_is_causal(own, fields, layer) for layer in range(model.num_hidden_layers)),
        )
        settings._check(checkpoint, fields | own, target)
        return settings

    def _check(
        self, checkpoint: HeadCheckpoint, own: Mapping[str, Any], target: TargetLayers
    ) -> None:
        wanted = {"num_target_layers": target.num_layers, "vocab_size": target.vocab_size}
        for key, value in wanted.items():
            if own.get(key) is not None:
                checkpoint.check_size(key, own[key], value)
        known = range(target.num_layers)
        if not self.target_layer_ids or any(one not in known for one in self.target_layer_ids):
            raise ModelLoadError(
                f"{checkpoint.path} was trained for another target: it reads the layers "
                f"{list(self.target_layer_ids)}, the target has {target.num_layers}"
            )
        if self.block_size < 2 or self.mask_token_id >= target.vocab_size:
            raise ModelLoadError(
                f"{checkpoint.path}: block_size must be 2 or more and mask_token_id below "
                f"{target.vocab_size}, got {self.block_size} and {self.mask_token_id}"
            )


def default_layer_ids(num_target_layers: int, count: int) -> list[int]:
    """Return evenly spaced layers of the target, for checkpoints that name none."""
    if count == 1:
        return [num_target_layers // 2]
    last = max(num_target_layers - 3, 1)
    return sorted({round(1 + place * (last - 1) / (count - 1)) for place in range(count)})


def _layer_ids(own: Mapping[str, Any], num_target_layers: int, num_layers: int) -> Sequence[Any]:
    if "target_layer_ids" in own:
        return list(own["target_layer_ids"])
    if "aux_hidden_state_layer_ids" in own:  # in speculators 0 is the input of the first layer
        return [layer - 1 for layer in own["aux_hidden_state_layer_ids"]]
    return default_layer_ids(num_target_layers, num_layers)


def _model_config(
    checkpoint: HeadCheckpoint, fields: Mapping[str, Any], target: TargetLayers
) -> Qwen3Config:
    checkpoint.check_size("hidden_size", fields.get("hidden_size"), target.hidden_size)
    known = checkpoint.model_fields()
    known.pop("mlp_bias", None)  # Qwen3 has none
    types: Sequence[str] = known.get("layer_types", ())
    try:
        if fields.get("model_type") == _TRANSFORMERS_TYPE:  # its window includes one token more
            known["sliding_window"] += 1
        return Qwen3Config(**known, use_sliding_window="sliding_attention" in types)
    except Exception as error:  # for example values of the wrong type
        raise ModelLoadError(f"{checkpoint.path}: config.json cannot be used: {error!r}") from error


def _is_causal(own: Mapping[str, Any], fields: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer's blocks are causal.

    If the checkpoint does not say so, layers with a window are causal, except in transformers'
    layout.
    """
    for key in ("is_causal", "causal"):
        if own.get(key) is not None:
            return bool(own[key])
    if own.get("sliding_window_non_causal") or own.get("model_type") == _TRANSFORMERS_TYPE:
        return False
    types = fields.get("layer_types") or ()
    return layer < len(types) and types[layer] == "sliding_attention"


class DFlashModel(nn.Module):
    """The drafter without the target's layers; its tensors have the checkpoint's names."""

    def __init__(self, settings: DFlashSettings) -> None:
        super().__init__()
        config, self.settings = settings.model, settings
        config._attn_implementation = ATTENTION_NAME
        size = config.hidden_size
        self.fc = nn.Linear(len(settings.target_layer_ids) * size, size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(size, config.rms_norm_eps)
        numbers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(config, number) for number in numbers)
        self.norm = Qwen3RMSNorm(size, config.rms_norm_eps)
        self.rotary_emb: Any = Qwen3RotaryEmbedding(config)
        self._context_layer: nn.Linear | None = None  # see `_fuse_context`
        self.head: OwnHead | None = None  # None: the target's head is used

    @classmethod
    def load(cls, path: Path, target: TargetLayers) -> Self:
        """Load a checkpoint that was trained for the target. Raises ModelLoadError."""
        found = HeadCheckpoint.read(path, PICKLED)
        names = {name: _OTHER_NAMES.get(name, name) for name in found.weights}
        weights = {names[name]: tensor for name, tensor in found.weights.items()}
        checkpoint = HeadCheckpoint(path, found.config, weights)
        if "candidate_selector.hidden_projection.weight" in weights:
            raise ModelLoadError(f"{path} is a DFlash 2 drafter; those of DFlash are supported")
        model = cls(DFlashSettings.read(checkpoint, target))
        checkpoint.fill(model)
        model._fuse_context()
        model.head = OwnHead.read(checkpoint, target, target.hidden_size)
        return target.place_decoder(model, Qwen3RotaryEmbedding(model.settings.model))

    @property
    def cache_shape(self) -> CacheShape:
        config = self.settings.model
        num_heads = config.num_key_value_heads or config.num_attention_heads
        return CacheShape(len(self.layers), num_heads, config.head_dim)

    def context(self, features: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        """Return the keys and values of tokens before a block, from their states [T, ids * H].

        The list has the first layer's key and value, then the next layer's, [kv_heads, T, head_dim]
        each.
        """
        states = self.hidden_norm(self.fc(features))
        if self._context_layer is None:
            rows = functional.linear(states, *self._context_weights())
        else:
            rows = self._context_layer(states)
        shape = len(rows), len(self.layers), 2, *self._head_sizes()
        keys, values = rows.view(shape).permute(2, 1, 3, 0, 4)
        layers: Any = self.layers
        normed = [layer.self_attn.k_norm(one) for layer, one in zip(layers, keys, strict=True)]
        angles = self.rotary_emb(states, positions.unsqueeze(0))
        no_queries = keys[:, :0]
        _, turned = apply_rotary_pos_emb(no_queries, torch.stack(normed), *angles)
        return [one for pair in zip(turned, values, strict=True) for one in pair]

    def forward(
        self, embedded: torch.Tensor, positions: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """Map embeddings of blocks' rows, [T, H], to states for the target's head, [T, H]."""
        hidden = embedded.unsqueeze(0)
        angles = self.rotary_emb(hidden, positions.unsqueeze(0))
        with attending(attention):
            for layer in self.layers:
                hidden = layer(hidden, position_embeddings=angles)
        output: torch.Tensor = self.norm(hidden)[0]
        return output

    def _head_sizes(self) -> tuple[int, int]:
        shape = self.cache_shape
        return shape.num_kv_heads, shape.head_dim

    def _context_weights(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the weights and biases of all layers' keys and values, joined into one layer."""
        parts: list[Any] = []
        for layer in self.layers:
            attention: Any = layer.self_attn
            parts += [attention.k_proj, attention.v_proj]
        biases = [part.bias for part in parts if part.bias is not None]
        return torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None

    def _fuse_context(self) -> None:
        """From now on compute all layers' keys and values as one product."""
        weight, bias = self._context_weights()
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        layer.weight = nn.Parameter(weight.detach())
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach())
        self._context_layer = layer
