"""Options to spread a model over the ranks of a group by transformers' own plan.

Every rank reads its share of the weights and caches its share of the key/value heads. The output of
a forward is complete on every rank, and the same to the last bit.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
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
    """Raises ModelLoadError, naming the possible numbers of ranks, if shares would differ."""
    sizes = {name: getattr(config, name, None) for name in _DIVIDED}
    found = {name: size for name, size in sizes.items() if isinstance(size, int) and size > 0}
    wrong = [f"{size} {_DIVIDED[name]}" for name, size in found.items() if size % num_ranks]
    if wrong:
        common = math.gcd(*found.values())
        legal = [str(n) for n in range(1, common + 1) if common % n == 0]
        raise ModelLoadError(
            f"{path} cannot be spread evenly over {num_ranks} ranks: it has "
            f"{', '.join(wrong)}; {', '.join(legal)} ranks are possible"
        )


def sharding_options(
    path: Path, config: Any, num_ranks: int, device: torch.device
) -> dict[str, Any]:
    """Return the arguments of from_pretrained that read one rank's share; none for one rank.

    Raises ModelLoadError.
    """
    if num_ranks == 1:
        return {}
    check_divides(path, config, num_ranks)
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    where = "cpu" if accelerator is None else accelerator.type
    if where != device.type:
        raise ModelLoadError(
            f"{path}: several ranks must run on the process's accelerator ({where}), not on "
            f"{device.type}: set the device to {where}, or hide the accelerator from the process"
        )
    return {"distributed_config": DistributedConfig(tp_size=num_ranks, tp_plan="auto")}


@contextlib.contextmanager
def only_available_accelerators() -> Iterator[None]:
    """Have transformers spread a model over the CPU where no accelerator is available.

    It asks torch which accelerator it was built for: "cuda" for the default build on Linux, which
    many machines without a GPU have installed.
    """
    built_for = torch._C._get_accelerator
    if torch.accelerator.current_accelerator(check_available=True) is None:
        torch._C._get_accelerator = lambda *_: torch.device("cpu")
    try:
        yield
    finally:
        torch._C._get_accelerator = built_for
