"""A model spread over the ranks of a group, through transformers' own plan.

Every rank reads its own share of the weights and holds the key/value heads that go with it. What
comes out of a forward pass is whole, and the same to the last bit, on every rank.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from transformers.distributed import DistributedConfig  # type: ignore[attr-defined]

from diffuspec.core.errors import ModelLoadError

_DIVIDED = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key/value heads",
    "intermediate_size": "inner columns of a layer",
    "vocab_size": "token ids",
}


def check_divides(path: Path, config: Any, num_ranks: int) -> None:
    """Raises ModelLoadError, naming what would be right, unless every rank gets the same share."""
    sizes = {name: getattr(config, name, None) for name in _DIVIDED}
    found = {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}
    wrong = [f"{size} {_DIVIDED[name]}" for name, size in found.items() if size % num_ranks]
    if wrong:
        common = math.gcd(*found.values())
        legal = [str(n) for n in range(1, common + 1) if common % n == 0]
        raise ModelLoadError(
            f"{path} cannot be spread evenly over {num_ranks} ranks: it has "
            f"{', '.join(wrong)}; {', '.join(legal)} ranks would do"
        )


def sharding_options(
    path: Path, config: Any, num_ranks: int, device: torch.device
) -> dict[str, Any]:
    """Return what from_pretrained needs to read one rank's share; nothing for a single rank.

    Raises ModelLoadError.
    """
    if num_ranks == 1:
        return {}
    check_divides(path, config, num_ranks)
    accelerator = torch.accelerator.current_accelerator()
    where = "cpu" if accelerator is None else accelerator.type
    if where != device.type:
        raise ModelLoadError(
            f"{path}: ranks work where the process's accelerator is, on {where}, not on "
            f"{device.type}: hide the accelerator from the process, or use it"
        )
    return {"distributed_config": DistributedConfig(tp_size=num_ranks, tp_plan="auto")}
