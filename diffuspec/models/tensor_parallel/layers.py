"""A model split over the ranks of a group: each rank's share of its layers, as plain tensors.

Every rank reads its share of the weights, according to transformers' own plan, and caches its share
of the key/value heads. The output of a forward is complete on every rank, and bitwise identical.

transformers shards weights as DTensors and wraps every layer's forward to convert between shards
and tensors. Here these layers are replaced by plain ones over the same local weights, so that a
forward costs only its products and collectives, and everything that works on plain layers (packed
CPU weights, CUDA graphs) also works on a shard.

A linear layer split by columns computes this rank's share of the output and needs no communication.
A layer split by rows takes a share of the input, and the ranks' outputs are summed. No row's bits
depend on the other rows of a forward: see `collectives`.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig  # type: ignore[attr-defined]

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.tensor_parallel.collectives import (
    collect_rows,
    join_columns,
    sum_of_ranks,
)

_DIVIDED = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key/value heads",
    "intermediate_size": "inner columns of a layer",
    "vocab_size": "token ids",
}


def use_local_layers(model: nn.Module) -> None:
    """Replace, in place, the layers that transformers has sharded over all ranks.

    Layers of types not listed in _LAYERS keep transformers' own sharding.
    """
    plan: dict[str, str] = getattr(model, "tp_plan", None) or {}
    for name, module in list(model.named_modules()):
        make = _LAYERS.get((type(module), plan.get(_any_layer(name), "")))
        if make is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, make(module))


def has_only_plain_tensors(model: nn.Module) -> bool:
    return not any(isinstance(parameter, DTensor) for parameter in model.parameters())


class PartialLinear(nn.Linear):
    """A linear layer whose outputs are added to those of other ranks: preferably float32."""


class _SummedLinear(nn.Module):
    """A linear layer split by rows: takes a share of the input, returns the whole output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        bias = None if layer.bias is None or dist.get_rank() > 0 else _local(layer.bias)
        self.share = _linear(PartialLinear, _local(layer.weight), bias)

    def forward(self, inputs: Tensor) -> Tensor:
        return sum_of_ranks(self.share(inputs), inputs.dtype)


class _SlicedLinear(_SummedLinear):
    """A linear layer split by rows that takes the whole input."""

    def forward(self, inputs: Tensor) -> Tensor:
        shares = inputs.chunk(dist.get_world_size(), dim=-1)
        return super().forward(shares[dist.get_rank()])


class _GatheredLinear(nn.Module):
    """A linear layer split by columns that returns the whole output on every rank."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.share = _split_by_columns(layer)

    def forward(self, inputs: Tensor) -> Tensor:
        return join_columns(self.share(inputs))


class _VocabularyShare(nn.Module):
    """An embedding; this rank holds a range of token ids."""

    is_exact = True

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.weight = _local(layer.weight)
        self._first = dist.get_rank() * len(self.weight)

    def forward(self, token_ids: Tensor) -> Tensor:
        row = token_ids - self._first
        is_mine = (row >= 0) & (row < len(self.weight))
        output = nn.functional.embedding(row.where(is_mine, 0), self.weight)
        return collect_rows(output.masked_fill(~is_mine.unsqueeze(-1), 0))


def _split_by_columns(layer: nn.Module) -> nn.Linear:
    bias = None if layer.bias is None else _local(layer.bias)
    return _linear(nn.Linear, _local(layer.weight), bias)


def _linear(kind: type[nn.Linear], weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    num_outputs, num_inputs = weight.shape
    layer = kind(num_inputs, num_outputs, bias=bias is not None, device="meta")
    layer.weight = weight
    if bias is not None:
        layer.bias = bias
    return layer


def _local(parameter: Any) -> nn.Parameter:
    return nn.Parameter(parameter.to_local().detach(), requires_grad=False)


def _any_layer(name: str) -> str:
    """Return a module's name as in plans, with * for layer numbers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


_LAYERS: dict[tuple[type[nn.Module], str], Callable[[nn.Module], nn.Module]] = {
    (nn.Linear, "colwise"): _split_by_columns,
    (nn.Linear, "rowwise"): _SummedLinear,
    (nn.Linear, "rowwise_split_input"): _SlicedLinear,
    (nn.Linear, "colwise_gather_output"): _GatheredLinear,
    (nn.Linear, "colwise_rep"): _GatheredLinear,
    (nn.Embedding, "embedding_rowwise"): _VocabularyShare,
}


def check_divides(path: Path, config: Any, num_ranks: int) -> None:
    """Raise ModelLoadError, naming the possible numbers of ranks, if shares would differ."""
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
    """Return the arguments of from_pretrained that read one rank's share; empty for one rank.

    Raises ModelLoadError.
    """
    if num_ranks == 1:
        return {}
    if not getattr(config, "base_model_tp_plan", None):
        raise ModelLoadError(
            f"{path}: {config.model_type} cannot be spread over {num_ranks} ranks: transformers "
            "has no tensor-parallel plan for it; 1 rank is possible"
        )
    check_divides(path, config, num_ranks)
    return {"distributed_config": DistributedConfig(tp_size=num_ranks, tp_plan="auto")}


@contextlib.contextmanager
def spreading_over(device: torch.device) -> Iterator[None]:
    """Make transformers split a model over devices of this type.

    It asks torch for which accelerator it was built: "cuda" for the default build on Linux, which
    is also installed where there is no GPU, or where the GPU is meant for other processes.
    """
    built_for = torch._C._get_accelerator
    if device.type == "cpu":
        torch._C._get_accelerator = lambda *_: device
    try:
        yield
    finally:
        torch._C._get_accelerator = built_for
