"""The parts of the target that draft heads share with it: its embeddings and its head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diffuspec.core.errors import ModelLoadError
from diffuspec.core.interfaces import ObservableVerifier


@dataclass(frozen=True, slots=True)
class TargetLayers:
    """What a head may call, and what it must fit. Hidden states are [..., hidden_size]."""

    embed: Callable[[torch.Tensor], torch.Tensor]  # token ids -> embeddings
    head: Callable[[torch.Tensor], torch.Tensor]  # hidden states -> logits
    hidden_size: int
    vocab_size: int  # columns of the logits
    device: torch.device
    dtype: torch.dtype


def target_layers(verifier: ObservableVerifier, path: Path | None) -> TargetLayers:
    """Return the layers of the verifier's model; where it is split over ranks, read from `path`.

    Raises ModelLoadError.
    """
    model: Any = verifier.model
    if model is None:
        raise ModelLoadError(
            f"{path}: draft heads need the whole target in one process; it is split over several"
        )
    config = model.config.get_text_config()
    weight = model.get_input_embeddings().weight
    return TargetLayers(
        model.get_input_embeddings(),
        model.get_output_embeddings(),
        config.hidden_size,
        config.vocab_size,
        weight.device,
        weight.dtype,
    )
