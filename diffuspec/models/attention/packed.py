"""Packed ragged attention over the cache, through transformers' attention interface.

The new tokens of all sequences stand in one row [1, T], so that every linear layer costs the
tokens actually there. The attention function finds what belongs to whom in the PackedBatch that
the runner passes along as a keyword argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface

from diffuspec.models.attention.cache import KVCache
from diffuspec.models.attention.kernels import attend, attend_fused, attend_in_blocks
from diffuspec.models.attention.masks import listed_mask, ordered_mask

ATTENTION_NAME = "diffuspec"
PROBE_NAME = "diffuspec-probe"  # the same, with a word on each layer's mask
MAX_SCORES = 1 << 24  # attention scores held at a time; longer segments go in chunks of rows

Visible: TypeAlias = Literal["causal", "full"] | int | NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """New rows of one sequence, n of them.

    They are written to the slot's rows from start on. Each sees all of the rows before start;
    among themselves `visible` says which columns a row sees: those up to itself, all, or [n, n];
    a number stands for so many causal rows before a block that sees all. Unless it is [n, n],
    positions follow each other. Segments run in order: one may see what an earlier one of the same
    slot has written.
    """

    slot: int
    start: int
    token_ids: NDArray[np.integer]  # [n]
    positions: NDArray[np.integer]  # [n]
    visible: Visible
    logit_rows: Sequence[int] | NDArray[np.integer]  # rows whose logits are wanted, in this order

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def num_causal(self) -> int:
        """How many rows, before others that see all, see none after them. Not for [n, n]."""
        if self.visible == "causal":
            return self.num_rows
        assert isinstance(self.visible, (str, int)), "rows that see what is listed have no order"
        return self.visible if isinstance(self.visible, int) else 0


class Attention(Protocol):
    """What the attention function hands every layer's work to."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        """query [heads, T, dim], key and value [kv_heads, T, dim] -> [T, heads, dim]."""
        ...


class PackedBatch:
    """One forward's segments, their cache rows and masks, prepared once for all layers.

    With a block size, columns are taken in blocks of that fixed size, so that what a row gets does
    not depend, to the last bit, on how many rows come after it.
    """

    def __init__(
        self, segments: Sequence[Segment], cache: KVCache, block_size: int | None = None
    ) -> None:
        self._parts = [_Part(segment, cache, block_size) for segment in segments]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        if len(self._parts) == 1:
            return self._parts[0].attend(layer, query, key, value, scaling, window)
        outputs, first = [], 0
        for part in self._parts:
            rows = slice(first, first + part.num_rows)
            first = rows.stop
            mine = query[:, rows], key[:, rows], value[:, rows]
            outputs.append(part.attend(layer, *mine, scaling, window))
        return torch.cat(outputs)


class _Part:
    """One segment's share of the work."""

    def __init__(self, segment: Segment, cache: KVCache, block_size: int | None) -> None:
        self.num_rows = segment.num_rows
        self._segment = segment
        self._block_size = block_size
        self._start = segment.start
        self._end = segment.start + segment.num_rows
        self._layers = cache.layers(segment.slot)
        self._views: dict[int | None, View] = {}  # by window

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
        window: int | None,
    ) -> torch.Tensor:
        view = self._view(window)
        keys, values, mask = self._layers[2 * layer], self._layers[2 * layer + 1], view.mask
        keys.narrow(1, self._start, self.num_rows).copy_(key)
        values.narrow(1, self._start, self.num_rows).copy_(value)
        keys = keys.narrow(1, view.first, view.num_columns)
        values = values.narrow(1, view.first, view.num_columns)
        if self._block_size is not None:
            assert mask is not None
            return attend_in_blocks(query, keys, values, mask, scaling, self._block_size)
        num_scores = query.shape[0] * keys.shape[1]
        if self.num_rows * num_scores <= MAX_SCORES:
            if not keys.is_cpu:
                return attend(query, keys, values, mask, scaling)
            mask = view.whole_mask(query.shape[0] // keys.shape[0])
            return attend_fused(query, keys, values, mask, scaling)
        step = max(1, MAX_SCORES // num_scores)
        outputs = []
        for first in range(0, self.num_rows, step):
            rows = slice(first, first + step)
            row_mask = None if mask is None else mask[rows]
            outputs.append(attend(query[:, rows], keys, values, row_mask, scaling))
        return torch.cat(outputs)

    def _view(self, window: int | None) -> View:
        """Return what layers with that window see: a row at position p sees those after p - window.

        No row is before the segment's start, so that columns further back need not be read.
        """
        if window is not None and window >= self._end:
            window = None
        if window not in self._views:
            first = 0 if window is None else max(0, self._start + 1 - window)
            if self._block_size is None:
                self._views[window] = self._make_view(first, window)
            else:
                self._views[window] = self._make_block_view(first, window, self._block_size)
        return self._views[window]

    def _make_view(self, first: int, window: int | None) -> View:
        segment, num_rows = self._segment, self.num_rows
        num_before = 0 if window is None else self._start - first
        mask: torch.Tensor | None = None
        if not isinstance(segment.visible, (str, int)):
            mask = listed_mask(
                segment.visible, segment.positions, self._start, num_before, window
            ).to(self._layers[0])
        elif num_rows > 1 and (window is not None or segment.num_causal):
            mask = self._ordered_mask(num_before, window)
        return View(first, self._end - first, mask)

    def _make_block_view(self, first: int, window: int | None, size: int) -> View:
        """Return a view of whole blocks, with a mask for all of their columns."""
        first, end = first // size * size, -(-self._end // size) * size
        mask = torch.full((self.num_rows, end - first), -torch.inf).to(self._layers[0])
        mask[:, : self._end - first] = self._ordered_mask(self._start - first, window)
        return View(first, end - first, mask)

    def _ordered_mask(self, num_before: int, window: int | None) -> torch.Tensor:
        num_causal, like = self._segment.num_causal, self._layers[0]
        return ordered_mask(self.num_rows, num_causal, num_before, window, like.dtype, like.device)


@dataclass(slots=True, eq=False)
class View:
    """Columns of the cache, and which of them the rows of a segment see."""

    first: int
    num_columns: int
    mask: torch.Tensor | None  # additive, for the last columns: the first ones are seen by all
    _whole_mask: torch.Tensor | None = None

    def whole_mask(self, num_copies: int) -> torch.Tensor | None:
        """Return the mask for all columns, the rows so many times; the same for every layer."""
        if self._whole_mask is None and self.mask is not None:
            padded = pad(self.mask, (self.num_columns - self.mask.shape[1], 0))
            self._whole_mask = padded.repeat(num_copies, 1) if num_copies > 1 else padded
        return self._whole_mask


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: int | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: Attention | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function: [1, heads, T, dim] -> [1, T, heads, dim].

    The mask is None, or when probing what it was made of: see _mask_window.
    """
    assert packed is not None, "a model with our attention is called through ModelRunner"
    for option in ("softcap", "s_aux"):
        if kwargs.get(option) is not None:
            raise NotImplementedError(f"attention with {option} is not supported")
    if not getattr(module, "is_causal", True):
        raise NotImplementedError("it is no causal LM: its tokens see those after them")
    if attention_mask is not None and attention_mask != sliding_window:
        raise NotImplementedError(f"a window of {attention_mask} by a mask alone is not supported")
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    layer: Any = module.layer_idx
    output = packed.attend(layer, query[0], key[0], value[0], scaling, sliding_window)
    return output.unsqueeze(0), None


def _mask_window(local_size: int | None = None, **_: Any) -> int | None:
    """transformers' mask function: return the window or chunk that the mask is to keep to."""
    return local_size


# No mask function is registered under the first name: transformers then builds no mask at all.
AttentionInterface.register(ATTENTION_NAME, packed_attention)
AttentionInterface.register(PROBE_NAME, packed_attention)
AttentionMaskInterface.register(PROBE_NAME, _mask_window)
