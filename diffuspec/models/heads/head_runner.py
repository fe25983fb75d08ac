"""The base class of the runners of draft heads: the target's layers, and the head's own cache."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.pages import num_pages_of
from diffuspec.core.types import TokenIds
from diffuspec.models.heads.target_layers import TargetLayers
from diffuspec.models.pages.cache import KVCache
from diffuspec.models.pages.store import CacheShape
from diffuspec.models.runner import padded_size


class HeadRunner:
    """The base class of head runners. On a CPU, only a few batch sizes occur: see `_padding`."""

    def __init__(
        self,
        layers: TargetLayers,
        target: TargetInfo,
        shape: CacheShape,
        num_scratch_rows: int,
    ) -> None:
        """Scratch rows follow those of a sequence, for drafted tokens."""
        self._layers = layers
        self._target = target
        num_pages = target.max_sequences * num_pages_of(target.max_model_len + num_scratch_rows)
        self._cache = KVCache(shape, num_pages, layers.dtype, layers.device)

    def _padding(self, num_rows: int) -> int:
        """Return the number of padding rows of a forward, as `ModelRunner` does."""
        return padded_size(num_rows) - num_rows if self._layers.device.type == "cpu" else 0

    def _padded(self, values: TokenIds, padding: int) -> torch.Tensor:
        """Return token ids or positions on the head's device, padded with zeros."""
        padded = np.pad(values.astype(np.int64), (0, padding))
        return torch.from_numpy(padded).to(self._layers.device)

    def _padded_states(self, states: torch.Tensor, padding: int) -> torch.Tensor:
        """Return hidden states, [T, H], in the head's type on its device, padded with zeros."""
        states = states.to(self._layers.device, self._layers.dtype)
        return functional.pad(states, (0, 0, 0, padding))
