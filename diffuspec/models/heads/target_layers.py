"""The layers of the target that draft heads use: its embeddings and its head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig

from diffuspec.core.errors import ModelLoadError
from diffuspec.core.interfaces import ObservableVerifier
from diffuspec.models.layers.fused_decoder import use_fused_layers
from diffuspec.models.layers.linear import use_fast_layers
from diffuspec.models.loading.shared import read_embeddings
from diffuspec.models.runner import padded_size

Head = TypeVar("Head", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class TargetLayers:
    """The target's layers that a head calls and must match. Hidden states: [..., hidden_size]."""

    embed: Callable[[torch.Tensor], torch.Tensor]  # token ids -> embeddings
    head: Callable[[torch.Tensor], torch.Tensor]  # hidden states -> logits; see `logits`
    hidden_size: int
    num_layers: int
    vocab_size: int  # columns of the logits
    device: torch.device
    dtype: torch.dtype

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the target's logits of hidden states, [R, H] -> [R, V] float32."""
        return by_padded_rows(self.head, states).float()

    def place(self, head: Head) -> Head:
        """Return a head on the target's device, in its type, in inference mode."""
        return head.to(self.device, self.dtype).eval().requires_grad_(False)

    def place_decoder(self, head: Head, rotary_emb: nn.Module) -> Head:
        """Place a head of decoder layers, on a CPU as our fast layers. Angles stay in float32."""
        head = self.place(head)
        head.rotary_emb = rotary_emb.to(self.device)
        if self.device.type == "cpu":
            use_fast_layers(head, allow_int8=True)
            use_fused_layers(head)
        return head


def by_padded_rows(
    layer: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor
) -> torch.Tensor:
    """Apply a layer to rows, on a CPU padded to a few sizes as in `ModelRunner`."""
    num_rows = len(inputs)
    if inputs.device.type == "cpu":
        inputs = functional.pad(inputs, (0, 0, 0, padded_size(num_rows) - num_rows))
    return layer(inputs)[:num_rows]


def target_layers(verifier: ObservableVerifier, path: Path | None) -> TargetLayers:
    """Return the layers of the verifier's model; if it is split over ranks, read them from `path`.

    Raises ModelLoadError.
    """
    layers = layers_of(verifier.model)
    if verifier.num_ranks == 1:
        return layers
    if path is None:
        raise ModelLoadError("draft heads need the directory of a target that is split over ranks")
    return layers_at(path, layers.device, layers.dtype)


def layers_at(path: Path, device: torch.device, dtype: torch.dtype) -> TargetLayers:
    """Read these layers from a model directory. Raises ModelLoadError."""
    config: Any = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
    whole = nn.ModuleList(read_embeddings(path)).to(device, dtype).eval().requires_grad_(False)
    if device.type == "cpu":
        use_fast_layers(whole, allow_int8=True)
    text = config.get_text_config()
    sizes = text.hidden_size, text.num_hidden_layers, text.vocab_size
    return TargetLayers(whole[0], whole[1], *sizes, device, dtype)


def layers_of(model: Any) -> TargetLayers:
    """Return the layers of a transformers model."""
    config = model.config.get_text_config()
    weight = model.get_input_embeddings().weight
    return TargetLayers(
        model.get_input_embeddings(),
        model.get_output_embeddings(),
        config.hidden_size,
        config.num_hidden_layers,
        config.vocab_size,
        weight.device,
        weight.dtype,
    )
