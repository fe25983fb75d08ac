"""Settings of a DFlash checkpoint, read from config.json in any of three layouts.

- z-lab/dflash, also read by vLLM and SGLang: the keys of a Qwen3 model, and DFlash's own among them
  or below `dflash_config`.
- vLLM's speculators: the model's keys below `transformer_layer_config`.
- transformers: all keys on one level, and other names of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from transformers import Qwen3Config

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.target_layers import TargetLayers

_MODEL_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "attention_bias",
    "max_position_embeddings",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "layer_types",
    "sliding_window",
)
_TRANSFORMERS_TYPE = "muse_glimmer_assistant"
# Keys of variants that compute something else, each with the value that keeps to the paper.
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
    target_layer_ids: tuple[int, ...]  # layers of the target whose outputs the drafter reads
    block_size: int  # rows of a block: the last token, and masks
    mask_token_id: int
    causal_layers: tuple[bool, ...]  # True for layers whose rows do not see later rows of a block

    @classmethod
    def read(cls, checkpoint: HeadCheckpoint, target: TargetLayers) -> Self:
        """Read config.json. Raises ModelLoadError, also if it was made for another target."""
        raw = checkpoint.config
        own = raw | _section(raw, "dflash_config")
        fields = {**raw, **_section(raw, "transformer_layer_config")}
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
        settings._check(checkpoint, own, target)
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
    """Return the target's layers to read where a checkpoint names none: evenly spread ones."""
    if count == 1:
        return [num_target_layers // 2]
    last = max(num_target_layers - 3, 1)
    return sorted({round(1 + place * (last - 1) / (count - 1)) for place in range(count)})


def _layer_ids(own: Mapping[str, Any], num_target_layers: int, num_layers: int) -> Sequence[Any]:
    if "target_layer_ids" in own:
        return list(own["target_layer_ids"])
    if "aux_hidden_state_layer_ids" in own:  # speculators' 0 is the input of the first layer
        return [layer - 1 for layer in own["aux_hidden_state_layer_ids"]]
    return default_layer_ids(num_target_layers, num_layers)


def _section(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = raw.get(name)
    return dict(section) if isinstance(section, Mapping) else {}


def _model_config(
    checkpoint: HeadCheckpoint, fields: Mapping[str, Any], target: TargetLayers
) -> Qwen3Config:
    checkpoint.check_size("hidden_size", fields.get("hidden_size"), target.hidden_size)
    known = {key: fields[key] for key in _MODEL_KEYS if fields.get(key) is not None}
    types: Sequence[str] = known.get("layer_types", ())
    try:
        if fields.get("model_type") == _TRANSFORMERS_TYPE:  # its window has one token more
            known["sliding_window"] += 1
        return Qwen3Config(**known, use_sliding_window="sliding_attention" in types)
    except Exception as error:  # such as values of the wrong type
        raise ModelLoadError(f"{checkpoint.path}: config.json cannot be used: {error!r}") from error


def _is_causal(own: Mapping[str, Any], fields: Mapping[str, Any], layer: int) -> bool:
    """Return whether a layer's blocks are causal.

    Unless the checkpoint says so, those of layers with a window are, but not in transformers'
    layout.
    """
    for key in ("is_causal", "causal"):
        if own.get(key) is not None:
            return bool(own[key])
    if own.get("sliding_window_non_causal") or own.get("model_type") == _TRANSFORMERS_TYPE:
        return False
    types = fields.get("layer_types") or ()
    return layer < len(types) and types[layer] == "sliding_attention"
