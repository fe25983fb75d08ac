"""Packed ragged attention over the cache.

The new rows of all sequences are packed into one sequence, [1, T], without padding to equal
lengths. A PackedBatch records which rows belong to which table of pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from diffuspec.models.attention import triton as triton_attention
from diffuspec.models.attention.cpu import CpuAttention, can_attend, pieces
from diffuspec.models.attention.interface import Attention, Heads, Projections, Scoring
from diffuspec.models.attention.segment import Segment
from diffuspec.models.attention.torch import TorchAttention
from diffuspec.models.kernels.decoder import AttentionPieces
from diffuspec.models.pages.cache import KVCache


class PackedBatch(Attention):
    """The `Attention` of one forward: its segments' cache rows and masks, shared by all layers.

    It reserves the pages that the forward writes, and raises OutOfPagesError if there are too few.

    The forward has num_padding rows after those of the segments; their output is zero. With a block
    size, columns are processed in blocks of that size, so that a row's output is bitwise
    independent of the number of rows after it. Without a block size, our own kernels make it depend
    only on the rows that it sees.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        cache: KVCache,
        block_size: int | None = None,
        num_padding: int = 0,
    ) -> None:
        for segment in segments:
            cache.reserve(segment.table, segment.end)
        self._segments, self._store = segments, cache.store
        self._block_size, self._num_padding = block_size, num_padding
        like = self._store.layer(0)[0]
        has_kernel = block_size is None and triton_attention.can_attend(like)
        self.on_gpu = (
            triton_attention.TritonAttention(segments, self._store, num_padding)
            if has_kernel
            else None
        )

    @cached_property
    def pieces(self) -> AttentionPieces | None:
        """The rows for fused layers; None if there is no kernel for those."""
        if self._num_padding or not self._has_cpu_kernel:
            return None
        parts = [(one.table.pages, list(pieces(one)), one.num_rows) for one in self._segments]
        return AttentionPieces(self._store.memory, parts)

    def attend(self, layer: int, rows: Projections, scoring: Scoring) -> Tensor:
        if self.on_gpu is not None and scoring.is_plain:
            return self.on_gpu.attend(layer, rows, scoring)
        has_kernel = scoring.is_plain and self._has_cpu_kernel
        parts = self._by_kernel if has_kernel else self._by_torch
        if len(parts) == 1 and not self._num_padding:
            return parts[0].attend(layer, rows, scoring)
        sizes = [segment.num_rows for segment in self._segments]
        split = rows.split([*sizes, self._num_padding])
        outputs = [
            part.attend(layer, its_rows, scoring)
            for part, its_rows in zip(parts, split, strict=False)  # padding has no part
        ]
        if self._num_padding:
            outputs.append(outputs[0].new_zeros(self._num_padding, *outputs[0].shape[1:]))
        return torch.cat(outputs)

    def attend_heads(self, layer: int, heads: Heads, scoring: Scoring) -> Tensor:
        if self.on_gpu is not None and scoring.is_plain:
            return self.on_gpu.attend_heads(layer, heads, scoring)
        return super().attend_heads(layer, heads, scoring)

    @property
    def _has_cpu_kernel(self) -> bool:
        return self._block_size is None and can_attend(self._store.layer(0)[0])

    @cached_property
    def _by_kernel(self) -> Sequence[Attention]:
        """The segments, in layers with plain scoring on a CPU."""
        return [CpuAttention(segment, self._store) for segment in self._segments]

    @cached_property
    def _by_torch(self) -> Sequence[Attention]:
        """The segments, in layers that none of our kernels computes."""
        return [TorchAttention(one, self._store, self._block_size) for one in self._segments]
