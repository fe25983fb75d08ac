"""One transformers model with its cache: packed rows in, logits of chosen rows out."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diffuspec.core.types import TokenIds
from diffuspec.models.attention.cache import KVCache
from diffuspec.models.attention.packed import PackedBatch, Segment
from diffuspec.models.probe import call_packed, probe

EXACT_BLOCK = 256  # columns of attention taken at a time in fixed shapes


class ModelRunner:
    """Runs a causal LM that was loaded with our attention.

    Rows are packed segment by segment. All calls come from one thread, best in inference mode; the
    weights take no gradients any more. forward_seconds and num_forwards add up what the model calls
    took, prefill included.

    With fixed_rows, every model call has that many rows of one segment, padded, and begins at a
    multiple of them: rows cached before are computed anew. A row then goes through the same kernels
    at the same place whatever is in a step, and its logits are the same to the last bit, wherever
    the same call gives the same twice (with as many threads) and rows are computed apart (in a
    mixture of experts they are not). Segments must be causal then, and what is before committed.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        num_slots: int,
        max_len: int,
        fixed_rows: int | None = None,
    ) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        parameter = next(model.parameters())
        self.device = parameter.device
        shape, self.vocab_size = probe(model, self.device)  # columns of the logits
        self._fixed_rows = fixed_rows
        num_rows = max_len
        if fixed_rows is not None:
            num_rows = -(-(max_len + fixed_rows) // EXACT_BLOCK) * EXACT_BLOCK
        self.cache = KVCache(shape, num_slots, num_rows, parameter.dtype, self.device)
        self.forward_seconds = 0.0
        self.num_forwards = 0

    @property
    def is_exact(self) -> bool:
        return self._fixed_rows is not None

    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Write the rows into the cache and return their segments' logits, [R, V] float32."""
        if self._fixed_rows is None:
            return self._forward(segments)
        pieces = [
            self._forward([padded])[rows]
            for segment in segments
            for padded, rows in self._fixed_pieces(segment, self._fixed_rows)
        ]
        return torch.cat(pieces)

    def _forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        block_size = None if self._fixed_rows is None else EXACT_BLOCK
        packed = PackedBatch(segments, self.cache, block_size)
        joined = torch.from_numpy(_join(segments))
        started = time.monotonic()
        joined = joined.to(self.device)
        num_rows = sum(segment.num_rows for segment in segments)
        token_ids, positions = joined[:num_rows], joined[num_rows : 2 * num_rows]
        keep_rows = joined[2 * num_rows :]
        logits = call_packed(self.model, token_ids, positions, keep_rows, packed).float()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.forward_seconds += time.monotonic() - started
        self.num_forwards += 1
        return logits

    def _fixed_pieces(self, segment: Segment, num_rows: int) -> Iterator[tuple[Segment, list[int]]]:
        """Cut a causal segment, and what is before it, at multiples of num_rows.

        Yields each piece, padded, which keeps the logits of all of its rows, and which of these are
        wanted.
        """
        assert isinstance(segment.visible, str) and segment.visible == "causal"
        num_before, end = segment.start % num_rows, segment.start + segment.num_rows
        before = self.cache.tokens(segment.slot)[segment.start - num_before : segment.start]
        assert len(before) == num_before, "what is before a segment is to be committed"
        token_ids = np.concatenate([before, segment.token_ids])
        every_row = np.arange(num_rows)
        for start in range(segment.start - num_before, end, num_rows):
            first = start + num_before - segment.start
            padded = np.zeros(num_rows, np.int64)
            mine = token_ids[first : first + num_rows]
            padded[: len(mine)] = mine
            positions = np.minimum(start + every_row, end - 1)  # padding may have no place after it
            rows = [row + num_before - first for row in segment.logit_rows]
            wanted = [row for row in rows if 0 <= row < num_rows]
            yield Segment(segment.slot, start, padded, positions, "causal", every_row), wanted

    def extend(self, slot: int, prefix: TokenIds, start: int, max_rows: int) -> int:
        """Feed a prefix causally until at most max_rows tokens of it are left.

        Returns how many are cached then. The slot's length must be start.
        """
        while len(prefix) - start > max_rows:
            start = self.feed(slot, prefix[start : start + max_rows], start)
        return start

    def feed(self, slot: int, token_ids: TokenIds, start: int) -> int:
        """Feed the tokens that follow the cached ones; return how many are cached then."""
        end = start + len(token_ids)
        last_row = [len(token_ids) - 1]
        positions = np.arange(start, end)
        self.forward([Segment(slot, start, token_ids, positions, "causal", last_row)])
        self.cache.commit(slot, token_ids, len(token_ids))
        return end


def _join(segments: Sequence[Segment]) -> NDArray[np.int64]:
    """Return all token ids, all positions and all rows that give logits: one copy to a device."""
    parts: list[Any] = [segment.token_ids for segment in segments]
    parts += [segment.positions for segment in segments]
    parts.append(segments[0].logit_rows)
    first = 0
    for previous, segment in pairwise(segments):
        first += previous.num_rows
        parts.append(np.asarray(segment.logit_rows) + first)
    return np.concatenate(parts, dtype=np.int64)
