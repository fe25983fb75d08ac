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


def sharding_options(path: Path, config: Any, num_ranks: int) -> dict[str, Any]:
    """Return the arguments of from_pretrained that read one rank's share; none for one rank.

    Raises ModelLoadError.
    """
    if num_ranks == 1:
        return {}
    check_divides(path, config, num_ranks)
    return {"distributed_config": DistributedConfig(tp_size=num_ranks, tp_plan="auto")}


@contextlib.contextmanager
def spreading_over(device: torch.device) -> Iterator[None]:
    """Have transformers spread a model over devices of this type.

    It asks torch which accelerator it was built for: "cuda" for the default build on Linux, which
    is also installed where there is no GPU, or where other processes are to have it.
    """
    built_for = torch._C._get_accelerator
    if device.type == "cpu":
        torch._C._get_accelerator = lambda *_: device
    try:
        yield
    finally:
        torch._C._get_accelerator = built_for
