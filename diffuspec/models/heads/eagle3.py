"""The EAGLE-3 head: one decoder layer on the target's hidden states in three places.

Li et al., EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time
Test (arXiv 2503.01840). `fc` combines the target's states before three of its layers (taps). Its
row for a token takes the token's embedding and, from the token before, that combination or the
head's own output; both are normed and side by side are the input of its attention. Its own head
maps outputs, normed, to the ids that it may draft.

It reads two layouts. SafeAILab/EAGLE, SpecForge and SGLang name the layer `midlayer` and list taps,
if at all, in `eagle_config`, as the layers whose outputs are taken. vLLM's speculators name it
`layers.0` and count taps as the layers whose inputs are taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
)

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.interface import ATTENTION_NAME, Attention, attending
from diffuspec.models.heads.checkpoint import SPECULATORS, HeadCheckpoint
from diffuspec.models.heads.eagle import cache_shape_of, rotary_of
from diffuspec.models.heads.own_head import OwnHead
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.pages.store import CacheShape

PICKLED = ("pytorch_model.bin",)
_TAPS = "eagle_aux_hidden_state_layer_ids"
_BESIDE_THE_LAYER = ("d2t", "t2d", "embed_tokens.weight", "lm_head.weight")
_VARIANTS = ("fc_norm", "norm_output")  # they compute something else
_IDS_AT_A_TIME = 8192


@dataclass(frozen=True, slots=True)
class Eagle3Settings:
    """A head's sizes, and which of the published variants it is."""

    layer: LlamaConfig
    taps: tuple[int, ...]  # the target's layers whose outputs it reads, counted from 0
    target_size: int  # columns of the target's hidden states
    norms_before_residual: bool  # the layer adds to the normed states, not to the states
    norms_before_fc: bool

    @classmethod
    def read(cls, checkpoint: HeadCheckpoint, target: TargetLayers) -> Self:
        """Read config.json. Raises ModelLoadError."""
        raw, path = checkpoint.config, checkpoint.path
        own, is_speculators = checkpoint.section("eagle_config"), SPECULATORS in raw
        if raw.get(SPECULATORS, "eagle3") != "eagle3":
            raise ModelLoadError(f"{path} is a speculator {raw[SPECULATORS]!r}, not eagle3")
        for key in _VARIANTS:
            if raw.get(key):
                raise ModelLoadError(f"{path}: {key} is not supported")
        if not own.get("use_aux_hidden_state", True):
            raise ModelLoadError(f"{path}: an EAGLE-3 head without use_aux_hidden_state")
        fields = checkpoint.model_fields()
        if fields.setdefault("num_hidden_layers", 1) != 1:
            raise ModelLoadError(f"{path}: an EAGLE-3 head has one layer, config.json says others")
        try:
            layer = LlamaConfig(**{**fields, "layer_types": None})
        except Exception as error:  # for example values of the wrong type
            raise ModelLoadError(f"{path}: config.json cannot be used: {error!r}") from error
        taps = _taps(raw.get(_TAPS), own.get(_TAPS), target.num_layers)
        if len(taps) < 2 or any(tap not in range(target.num_layers) for tap in taps):
            raise ModelLoadError(
                f"{path} was trained for another target: it reads the outputs of the layers "
                f"{list(taps)}, the target has {target.num_layers}"
            )
        return cls(
            layer,
            taps,
            target.hidden_size,
            bool(raw.get("norm_before_residual", is_speculators)),
            bool({**raw, **own}.get("norm_before_fc")),
        )


def _taps(inputs: Any, outputs: Any, num_layers: int) -> tuple[int, ...]:
    """Return the layers whose outputs are read, from what a checkpoint lists, or its authors'."""
    if inputs:
        return tuple(int(layer) - 1 for layer in inputs)
    if outputs:
        return tuple(int(layer) for layer in outputs)
    return 1, num_layers // 2 - 1, num_layers - 4


class _Layer(nn.Module):
    """Llama's layer, but its attention reads embeddings and states side by side."""

    def __init__(self, settings: Eagle3Settings) -> None:
        super().__init__()
        config = settings.layer
        size, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn: Any = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):
            usual = getattr(self.self_attn, name)
            wide = nn.Linear(2 * size, usual.out_features, bias=usual.bias is not None)
            setattr(self.self_attn, name, wide)
        mlp: Any = LlamaMLP
        self.mlp = mlp(config)
        self.hidden_norm = LlamaRMSNorm(size, eps)
        self.input_layernorm = LlamaRMSNorm(size, eps)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps)
        self._norms_before_residual = settings.norms_before_residual

    def forward(
        self, embedded: torch.Tensor, hidden: torch.Tensor, angles: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        normed = self.hidden_norm(hidden)
        inputs = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        attended, _ = self.self_attn(inputs, position_embeddings=angles, attention_mask=None)
        hidden = attended + (normed if self._norms_before_residual else hidden)
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class Eagle3Head(nn.Module):
    """The head alone; its tensors have the names of vLLM's speculators."""

    def __init__(self, settings: Eagle3Settings) -> None:
        super().__init__()
        config, width = settings.layer, len(settings.taps) * settings.target_size
        config._attn_implementation = ATTENTION_NAME
        self.hidden_layers = settings.taps
        self.config = config
        if settings.norms_before_fc:
            self.input_norm = LlamaRMSNorm(width, config.rms_norm_eps)
        self.fc = nn.Linear(width, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([_Layer(settings)])
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = rotary_of(config)
        self._norms_before_fc = settings.norms_before_fc
        self.embed_tokens: nn.Embedding | None = None  # None: the target's embeddings
        self.head: OwnHead | None = None  # None: the target's head

    @classmethod
    def load(cls, path: Path, target: TargetLayers) -> Self:
        """Load a checkpoint that was trained for the target. Raises ModelLoadError."""
        found = HeadCheckpoint.read(path, PICKLED)
        named = ((name.removeprefix("model."), x) for name, x in found.weights.items())
        weights = {name.replace("midlayer.", "layers.0.", 1): tensor for name, tensor in named}
        checkpoint = HeadCheckpoint(path, found.config, weights)
        if "fc.weight" not in weights or "layers.0.hidden_norm.weight" not in weights:
            raise ModelLoadError(f"{path} is not an EAGLE-3 head: it has no fc or no hidden_norm")
        model = cls(Eagle3Settings.read(checkpoint, target))
        known = {*dict(model.named_parameters()), *_BESIDE_THE_LAYER}
        if unknown := sorted(weights.keys() - known):
            raise ModelLoadError(f"{path} is a variant of EAGLE-3: {unknown[0]} is not supported")
        checkpoint.fill(model)
        model._take_ends(checkpoint, target)
        return target.place_decoder(model, rotary_of(model.config))

    @property
    def cache_shape(self) -> CacheShape:
        return cache_shape_of(self.config, self.layers[0])

    def embed(self, token_ids: torch.Tensor, target: TargetLayers) -> torch.Tensor:
        """Return the embeddings of tokens, [T, H]."""
        if self.embed_tokens is None:
            return target.embed(token_ids)
        embedded: torch.Tensor = self.embed_tokens(token_ids)
        return embedded

    def logits(self, outputs: torch.Tensor, target: TargetLayers) -> torch.Tensor:
        """Return logits over the target's ids, [R, V] float32; -inf for ids never drafted."""
        normed: torch.Tensor = self.norm(outputs)
        if self.head is None:
            return target.logits(normed)
        logits: torch.Tensor = self.head(normed)
        return logits

    def forward(
        self,
        embedded: torch.Tensor,
        states: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
    ) -> torch.Tensor:
        """Map embeddings [T, H] and the states before them to outputs, [T, H].

        The states are the target's, [T, taps * target_size], or the head's own outputs, [T, H].
        positions [T] are those of the states.
        """
        if states.shape[-1] != self.config.hidden_size:
            states = self.fc(self.input_norm(states) if self._norms_before_fc else states)
        angles = self.rotary_emb(states.unsqueeze(0), positions.unsqueeze(0))
        with attending(attention):
            output: torch.Tensor = self.layers[0](
                embedded.unsqueeze(0), states.unsqueeze(0), angles
            )
        return output[0]

    def _take_ends(self, checkpoint: HeadCheckpoint, target: TargetLayers) -> None:
        """Load embeddings that differ from the target's, and the checkpoint's own head."""
        size = self.config.hidden_size
        self.head = OwnHead.read(checkpoint, target, size)
        if self.head is None:
            checkpoint.check_size("hidden_size", size, target.hidden_size)
        if "embed_tokens.weight" not in checkpoint.weights:
            checkpoint.check_size("hidden_size", size, target.hidden_size)
            return
        weight = checkpoint.take("embed_tokens.weight", target.vocab_size, size)
        if not _equals_embeddings(weight, target):
            num_ids, size = weight.shape
            self.embed_tokens = nn.Embedding(num_ids, size, _weight=weight)


def _equals_embeddings(weight: torch.Tensor, target: TargetLayers) -> bool:
    """Return whether a table [V, H] has the target's embeddings, in the target's type."""
    if weight.shape[1] != target.hidden_size:
        return False
    every = torch.arange(len(weight), device=target.device)
    for ids in torch.split(every, _IDS_AT_A_TIME):
        rows = weight[ids.cpu()].to(target.device, target.dtype)
        if not torch.equal(target.embed(ids), rows):
            return False
    return True
