"""Random draft heads for a target, saved as their authors' checkpoints are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


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


def _save(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], name: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    torch.save(weights, path / name)
