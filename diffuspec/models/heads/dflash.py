"""The DFlash drafter: a block-diffusion model that reads the target's hidden states.

Chen et al., DFlash: Block Diffusion for Flash Speculative Decoding (arXiv 2602.06036). Its layers
are those of Qwen3. A block is the last token and masks; every row guesses the token at its own
place. The tokens before the block do not pass through these layers: `fc` joins the hidden states of
some of the target's layers at each token, and every layer here makes its key and value out of that.
Checkpoints: see dflash_settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.cache import CacheShape
from diffuspec.models.attention.interface import ATTENTION_NAME, Attention, attending
from diffuspec.models.heads.checkpoint import HeadCheckpoint
from diffuspec.models.heads.dflash_settings import DFlashSettings
from diffuspec.models.heads.target_layers import TargetLayers

PICKLED = ("pytorch_model.bin",)
_OTHER_NAMES = {  # names of tensors in transformers' own model: our names
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}


class DFlashModel(nn.Module):
    """The drafter alone, with the names of the checkpoint's tensors."""

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
        self.token_ids: torch.Tensor | None = None  # ids of the columns of `head`
        self.head: nn.Linear | None = None  # None: the target's head is used

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
        model._take_head(checkpoint, target)
        return target.place_decoder(model, Qwen3RotaryEmbedding(model.settings.model))

    @property
    def cache_shape(self) -> CacheShape:
        config = self.settings.model
        num_heads = config.num_key_value_heads or config.num_attention_heads
        return CacheShape(len(self.layers), num_heads, config.head_dim)

    def context(self, features: torch.Tensor, positions: torch.Tensor) -> list[torch.Tensor]:
        """Return the keys and values of tokens before a block, out of their states [T, ids * H].

        Those of the first layer, then of the next, [kv_heads, T, head_dim] each.
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
        """Embeddings of blocks' rows, [T, H] -> states for the target's head, [T, H]."""
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
        """Return the weights and biases of all layers' keys and values, joined into one layer's."""
        parts: list[Any] = []
        for layer in self.layers:
            attention: Any = layer.self_attn
            parts += [attention.k_proj, attention.v_proj]
        biases = [part.bias for part in parts if part.bias is not None]
        return torch.cat([part.weight for part in parts]), torch.cat(biases) if biases else None

    def _fuse_context(self) -> None:
        """Make all layers' keys and values one product from now on."""
        weight, bias = self._context_weights()
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        layer.weight = nn.Parameter(weight.detach())
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach())
        self._context_layer = layer

    def _take_head(self, checkpoint: HeadCheckpoint, target: TargetLayers) -> None:
        """Take the checkpoint's own head, if it has one, over some or all of the target's ids."""
        if "lm_head.weight" not in checkpoint.weights:
            return
        num_columns = len(checkpoint.weights["lm_head.weight"])
        self.head = nn.Linear(target.hidden_size, num_columns, bias=False)
        self.head.weight.data = checkpoint.take("lm_head.weight", num_columns, target.hidden_size)
        ids = torch.arange(num_columns)
        if "d2t" in checkpoint.weights:  # the target's ids less the columns' numbers
            ids = ids + checkpoint.take("d2t", num_columns)
        if not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab_size:
            raise ModelLoadError(
                f"{checkpoint.path} was trained for another target: it guesses ids from "
                f"{int(ids.min())} to {int(ids.max())}, the target has {target.vocab_size}"
            )
        self.token_ids = ids.to(target.device)
