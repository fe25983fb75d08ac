"""What a loaded model does with packed rows, found out by running a few.

A model that takes other ways to place its tokens or to attend would answer wrongly, without a word.
"""

from __future__ import annotations

from typing import Any

import torch

from diffuspec.core.errors import ModelLoadError
from diffuspec.models.attention.cache import CacheShape
from diffuspec.models.attention.packed import ATTENTION_NAME, PROBE_NAME

_TOKEN_IDS = (1, 2, 3, 4)  # several: the embedding of one may be all zeros
_FAR = 100  # a position far enough from 0 to turn all but the slowest angles


@torch.inference_mode()
def probe(model: Any, device: torch.device) -> tuple[CacheShape, int]:
    """Learn the cache's shape (local heads, if sharded) and the vocabulary's size.

    Raises ModelLoadError for a model whose layers are not all plain attention of one shape, or that
    does not place tokens by the positions it is given, and NotImplementedError for one whose layers
    keep to windows that attention is not told of.
    """
    seen = _Probe()
    token_ids = torch.tensor(_TOKEN_IDS * 3, device=device)
    first = torch.zeros(len(_TOKEN_IDS), dtype=torch.int64, device=device)
    far = min(_FAR, model.config.max_position_embeddings - 1)
    positions = torch.cat([first, first + far, first])
    model.set_attn_implementation(PROBE_NAME)
    try:
        logits = call_packed(model, token_ids, positions, first[:1], seen)
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    layers = [layer for layer, _, _ in seen.shapes]
    kinds = {(heads, dim) for _, heads, dim in seen.shapes}
    if layers != list(range(len(layers))) or len(kinds) != 1:
        raise ModelLoadError("it is not a stack of attention layers of one shape")
    # Rows that ignored their positions would all differ, by what comes before them.
    if not 4 * seen.apart_if_ignored < seen.apart_by_position:
        raise ModelLoadError("it does not place tokens by position_ids")
    ((num_kv_heads, head_dim),) = kinds
    return CacheShape(len(layers), num_kv_heads, head_dim), logits.shape[-1]


def call_packed(
    model: torch.nn.Module,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    keep_rows: torch.Tensor,
    packed: Any,
) -> torch.Tensor:
    """Run packed rows; return the logits of keep_rows. `packed` is what attention gets."""
    output: Any = model(
        input_ids=token_ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        use_cache=False,
        logits_to_keep=keep_rows,
        packed=packed,
    )
    logits: torch.Tensor = output.logits[0]
    return logits


class _Probe:
    """Stands in for a PackedBatch to see what each layer asks of attention.

    The rows are the same tokens three times: at position 0, far from it, and at 0 again. Distances
    of the keys from those of the first time are summed over all layers. Each row sees only itself.
    """

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int, int]] = []  # (layer, kv heads, head dim)
        self.apart_by_position = 0.0
        self.apart_if_ignored = 0.0

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
        at_0, far, again = key.float().chunk(3, dim=1)
        self.apart_by_position += float((far - at_0).norm())
        self.apart_if_ignored += float((again - at_0).norm())
        return value.repeat_interleave(query.shape[0] // key.shape[0], dim=0).transpose(0, 1)
