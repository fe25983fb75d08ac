"""One transformers model with its cache: packed rows in, logits of chosen rows out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.errors import ModelLoadError
from diffuspec.models.attention import PackedBatch, Segment
from diffuspec.models.cache import CacheShape, KVCache


class ModelRunner:
    """Runs a causal LM that was loaded with our attention.

    Rows are packed segment by segment. All calls come from one thread. forward_seconds and
    num_forwards add up what the model calls took, prefill included.
    """

    def __init__(self, model: torch.nn.Module, num_slots: int, max_len: int) -> None:
        self._model = model.eval()
        parameter = next(model.parameters())
        self.device = parameter.device
        self.cache = KVCache(
            _probe(model, self.device), num_slots, max_len, parameter.dtype, self.device
        )
        self.forward_seconds = 0.0
        self.num_forwards = 0

    @torch.inference_mode()
    def forward(
        self,
        segments: Sequence[Segment],
        token_ids: NDArray[np.int64],  # [T]
        positions: NDArray[np.int64],  # [T]
        keep_rows: NDArray[np.int64],  # [R], rows whose logits are wanted, in any order
    ) -> torch.Tensor:
        """Write the rows into the cache and return float32 logits of the rows to keep, [R, V]."""
        packed = PackedBatch(segments, positions, self.cache)
        started = time.monotonic()
        logits = _call(
            self._model,
            torch.from_numpy(token_ids).to(self.device),
            torch.from_numpy(positions).to(self.device),
            torch.from_numpy(keep_rows).to(self.device),
            packed,
        ).float()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.forward_seconds += time.monotonic() - started
        self.num_forwards += 1
        return logits


def _call(
    model: torch.nn.Module,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    keep_rows: torch.Tensor,
    packed: Any,
) -> torch.Tensor:
    output: Any = model(
        input_ids=token_ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=keep_rows,
        packed=packed,
    )
    logits: torch.Tensor = output.logits[0]
    return logits


class _ShapeProbe:
    """Stands in for a PackedBatch to see what each layer asks of attention."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int]] = []  # (layer, kv heads, head dim)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        if key.shape != value.shape:
            raise ModelLoadError(f"layer {layer} has keys and values of different shapes")
        self.shapes.append((layer, key.shape[0], key.shape[2]))
        return query.transpose(0, 1)


@torch.inference_mode()
def _probe(model: torch.nn.Module, device: torch.device) -> CacheShape:
    """Run one token through the model to learn the cache's shape (local heads, if sharded).

    Raises ModelLoadError for a model whose layers are not all plain attention of one shape.
    """
    probe = _ShapeProbe()
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    _call(model, zero, zero, zero, probe)
    layers = [layer for layer, _, _ in probe.shapes]
    kinds = {(heads, dim) for _, heads, dim in probe.shapes}
    if layers != list(range(len(layers))) or len(kinds) != 1:
        name = type(model).__name__
        raise ModelLoadError(f"{name} is not a stack of attention layers of one shape")
    ((num_kv_heads, head_dim),) = kinds
    return CacheShape(len(layers), num_kv_heads, head_dim)
