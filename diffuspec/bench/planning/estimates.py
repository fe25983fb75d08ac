"""Costs of a model on a card without measurements: from its sizes, bandwidth and arithmetic.

Fitted to an H200 (torch 2.11, Triton 3.6, revision 69ee5b2d): plain steps of Qwen2.5-32B's and
Dream-7B's sizes take 23.2 and 5.8 ms, SmolLM2's 1.8 ms, a prompt of 512 tokens 60 ms; this gives
23.4, 5.8, 1.6 and 63 ms.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffuspec.bench.planning.costs import CallCosts, Curve, DeviceCosts, Figure, ModelCosts
from diffuspec.core.errors import ConfigError

_LAYER_SECONDS = 50e-6  # launches and small kernels of a layer
_REQUEST_SECONDS = 20e-6  # of a further request in a batch
_BANDWIDTH_SHARE, _FLOPS_SHARE = 0.66, 0.56  # of the data sheet's
_ATTENTION_SHARE = 0.14  # of the data sheet's arithmetic, in attention
_INTERFERENCE = 0.9
_ROWS = (1, 16, 64, 128, 256, 512, 1024, 4096, 16384)
_BYTES = 2  # of a weight or a cached number, in bfloat16


@dataclass(frozen=True, slots=True)
class Card:
    """The figures of a data sheet; arithmetic in bfloat16 without sparsity."""

    bandwidth: float  # bytes per second
    flops: float
    memory_bytes: float


CARDS = {
    "a100": Card(2.04e12, 312e12, 80e9),
    "h100": Card(3.35e12, 989e12, 80e9),
    "h200": Card(4.8e12, 989e12, 141e9),
    "l4": Card(0.3e12, 121e12, 24e9),
    "l40s": Card(0.864e12, 362e12, 48e9),
}


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a dense decoder."""

    num_layers: int
    hidden: int
    num_heads: int
    num_key_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @property
    def num_weights(self) -> int:
        """Weights that a step multiplies: all but the embedding."""
        attention = self.hidden * self.head_dim * 2 * (self.num_heads + self.num_key_heads)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.num_layers * layer + self.hidden * self.vocab

    @property
    def cache_bytes(self) -> int:
        """Bytes of a token in the key-value cache."""
        return 2 * self.num_layers * self.num_key_heads * self.head_dim * _BYTES


_QWEN = {  # layers, hidden, heads, key heads, intermediate
    "0.5B": (24, 896, 14, 2, 4864),
    "1.5B": (28, 1536, 12, 2, 8960),
    "3B": (36, 2048, 16, 2, 11008),
    "7B": (28, 3584, 28, 4, 18944),
    "14B": (48, 5120, 40, 8, 13824),
    "32B": (64, 5120, 40, 8, 27648),
    "72B": (80, 8192, 64, 8, 29568),
}


def _qwen(size: str) -> ModelSizes:
    layers, hidden, heads, key_heads, intermediate = _QWEN[size]
    return ModelSizes(layers, hidden, heads, key_heads, hidden // heads, intermediate, 152_064)


KNOWN = {f"Qwen2.5-{size}": _qwen(size) for size in _QWEN} | {
    "Dream-7B": _qwen("7B"),
    "Fast_dLLM_v2_1.5B": _qwen("1.5B"),
    "Fast_dLLM_v2_7B": _qwen("7B"),
}


def find_sizes(name: str) -> ModelSizes | None:
    """Return the sizes of a known model, or those in a directory's config.json.

    None: it is neither. Raises ConfigError for a directory that cannot be estimated.
    """
    short = Path(name).name.lower().removesuffix("-instruct")
    if (path := Path(name) / "config.json").is_file():
        return _read_sizes(path)
    return next((sizes for key, sizes in KNOWN.items() if key.lower() == short), None)


def _read_sizes(path: Path) -> ModelSizes:
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        heads, hidden = int(data["num_attention_heads"]), int(data["hidden_size"])
        sizes = ModelSizes(
            int(data["num_hidden_layers"]),
            hidden,
            heads,
            int(data.get("num_key_value_heads", heads)),
            int(data.get("head_dim") or hidden // heads),
            int(data["intermediate_size"]),
            int(data["vocab_size"]),
        )
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise ConfigError(f"{path}: no sizes of a decoder: {error!r}") from error
    for key in ("quantization_config", "num_experts", "num_local_experts"):
        if data.get(key):
            raise ConfigError(f"{path}: costs with {key} cannot be estimated: measure them")
    return sizes


def find_card(name: str) -> Card:
    """Return a card by its name. Raises ConfigError."""
    if name.lower() not in CARDS:
        raise ConfigError(f"--gpu must be {', '.join(CARDS)} or cpu, got {name!r:.80}")
    return CARDS[name.lower()]


def empty_device(name: str) -> DeviceCosts:
    """Return a card without models. Raises ConfigError."""
    memory = Figure(value=find_card(name).memory_bytes, origin="measured elsewhere")
    between = Figure(value=_INTERFERENCE, origin="estimated")
    return DeviceCosts(device=name, memory_bytes=memory, interference=between)


def estimate(sizes: ModelSizes, card: Card, num_ranks: int = 1) -> ModelCosts:
    """Estimate a model's costs, split over `num_ranks` cards."""
    weights = sizes.num_weights * _BYTES / num_ranks
    read = weights / (_BANDWIDTH_SHARE * card.bandwidth)
    row = 2 * sizes.num_weights / num_ranks / (_FLOPS_SHARE * card.flops)
    # Two sums over the ranks a layer take about as long as another layer's launches.
    layers = sizes.num_layers * _LAYER_SECONDS * (1 if num_ranks == 1 else 2)
    points = tuple((float(rows), layers + max(read, row * rows)) for rows in _ROWS)
    seen = 4 * sizes.num_layers * sizes.num_heads * sizes.head_dim / num_ranks
    call = CallCosts(
        rows=Curve(points=points, origin="estimated"),
        request=_figure(_REQUEST_SECONDS),
        context=_figure(sizes.cache_bytes / num_ranks / (_BANDWIDTH_SHARE * card.bandwidth)),
        row_context=_figure(seen / (_ATTENTION_SHARE * card.flops)),
    )
    return ModelCosts(
        source=f"sizes and a data sheet, over {num_ranks} cards; see bench/planning/estimates.py",
        verify=call,
        draft=call,
        weight_bytes=_figure(weights + sizes.vocab * sizes.hidden * _BYTES / num_ranks),
        cache_bytes=_figure(sizes.cache_bytes / num_ranks),
    )


def _figure(value: float) -> Figure:
    return Figure(value=value, origin="estimated")
