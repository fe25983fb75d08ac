"""The self-test of a newly loaded model: runs a few packed rows and checks its attention calls.

It rejects models that would run but give wrong answers: those that do not place tokens by
position_ids, or whose kind of attention our kernels do not compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.interface import (
    ATTENTION_NAME,
    SELF_TEST_NAME,
    Attention,
    Projections,
    Scoring,
    run_packed,
)
from diffuspec.models.pages.store import CacheShape

_TOKEN_IDS = (1, 2, 3, 4)  # several, since the embedding of one may be all zeros
_FAR = 100  # a position far enough from 0 to rotate all but the slowest rotary angles


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Facts about a model that its runner needs."""

    # dimensions of this process's cache: a tensor-parallel rank has a share of the heads
    cache: CacheShape
    num_heads: int  # query heads in this process
    num_columns: int  # columns of the logits
    has_plain_scoring: bool  # whether every layer has plain scoring; see `Scoring`
    window: int | None  # rows seen by the layer that sees most; None: some layer sees all rows


@torch.inference_mode()
def run_self_test(model: Any, device: torch.device) -> ModelShape:
    """Run the self-test and return the model's shape.

    Raises ModelLoadError if the layers are not plain attention of one shape, or tokens are not
    placed by position_ids; NotImplementedError if only a layer's mask reveals its window.
    """
    recorder = _Recorder()
    token_ids = torch.tensor(_TOKEN_IDS * 3, device=device)
    zeros = torch.zeros(len(_TOKEN_IDS), dtype=torch.int64, device=device)
    far = min(_FAR, model.config.max_position_embeddings - 1)
    positions = torch.cat([zeros, zeros + far, zeros])
    model.set_attn_implementation(SELF_TEST_NAME)
    try:
        logits = run_packed(model, token_ids, positions, zeros[:1], recorder)
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    layers = [layer for layer, _, _ in recorder.shapes]
    kinds = {(heads, dim) for _, heads, dim in recorder.shapes}
    if layers != list(range(len(layers))) or len(kinds) != 1:
        raise ModelLoadError("it is not a stack of attention layers of one shape")
    # If the model ignored position_ids, all three copies would differ by their row numbers.
    if not 4 * recorder.distance_of_repeat < recorder.distance_of_far:
        raise ModelLoadError("it does not place tokens by position_ids")
    if len(layers) != model.config.num_hidden_layers:
        raise ModelLoadError(f"only {len(layers)} of its layers are attention")
    ((num_kv_heads, head_dim),) = kinds
    cache = CacheShape(len(layers), num_kv_heads, head_dim)
    plain = recorder.has_plain_scoring
    window = None if None in recorder.windows else max(filter(None, recorder.windows))
    return ModelShape(cache, recorder.num_heads, logits.shape[-1], plain, window)


class _Recorder(Attention):
    """Records shapes and keys; each row attends only to itself.

    The rows are three copies of the same tokens: at position 0, far away, and at 0 again. The two
    distances are L2 distances between the keys of a copy and of the first, summed over all layers.
    """

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int]] = []  # (layer, kv heads, head dim)
        self.distance_of_far = 0.0
        self.distance_of_repeat = 0.0
        self.has_plain_scoring = True
        self.windows = set[int | None]()
        self.num_heads = 0

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        query, key, value = rows
        if key.shape != value.shape:
            raise ModelLoadError(f"layer {layer} has keys and values of different shapes")
        self.has_plain_scoring &= scoring.is_plain
        self.windows.add(scoring.window)
        self.num_heads = query.shape[0]
        self.shapes.append((layer, key.shape[0], key.shape[2]))
        first, far, repeat = key.float().chunk(3, dim=1)
        self.distance_of_far += float((far - first).norm())
        self.distance_of_repeat += float((repeat - first).norm())
        return value.repeat_interleave(query.shape[0] // key.shape[0], dim=0).transpose(0, 1)
