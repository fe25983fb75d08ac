"""Tests whether a runner computes a row to the same bits alone and among other rows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch

from diffuspec.core.pages import PAGE_SIZE, num_pages_of
from diffuspec.models.attention.interface import Projections, Scoring
from diffuspec.models.attention.packed import PackedBatch
from diffuspec.models.attention.segment import Segment
from diffuspec.models.pages.cache import KVCache
from diffuspec.models.pages.store import CacheShape
from diffuspec.models.pages.table import PageTable
from diffuspec.models.runner import ModelRunner
from diffuspec.models.tensor_parallel.collectives import Agree

# rows of each forward; afterwards all rows in one forward, for comparison
_STEPS = (1, 2, 17, 5, 12)
# enough rows to reveal differences between kernels
_ATTENTION_STEPS = (700, 1, 2, 9, 22, 43, 65, 86, 1, 160)


@torch.inference_mode()
def has_independent_rows(runner: ModelRunner, agree: Agree = bool) -> bool:
    """Process tokens at once and step by step; compare all bits of logits, keys and values.

    The runner must be new; its state is restored. Ranks of a model `agree`.
    """
    if not agree(runner.has_plain_scoring and _attends_rows_alone(runner)):
        return False
    num_rows = min(sum(_STEPS), runner.max_len - 1, runner.cache.num_pages * PAGE_SIZE)
    store, table = runner.cache.store, runner.cache.acquire("trial", np.zeros(0, np.int32))
    steps = [_forward(runner, table, start, end) for start, end in _bounds(_STEPS, num_rows)]
    in_steps, rows = torch.cat(steps), store.rows(table.pages, num_rows)
    at_once = _forward(runner, table, 0, num_rows)
    is_same = torch.equal(in_steps, at_once)
    is_same = is_same and torch.equal(rows, store.rows(table.pages, num_rows))
    runner.cache.clear("trial")
    runner.reset_counts()
    return agree(is_same)


def _attends_rows_alone(runner: ModelRunner) -> bool:
    """Compare attention in a layer's shape over random rows, at once and in steps."""
    num_rows = sum(_ATTENTION_STEPS)
    num_kv_heads, dim = runner.cache.store.shape.num_kv_heads, runner.cache.store.shape.head_dim
    dtype, device = runner.cache.store.dtype, runner.device
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(heads, num_rows, dim, generator=random).to(device, dtype)
        for heads in (runner.num_heads, num_kv_heads, num_kv_heads)
    )
    shape = CacheShape(1, num_kv_heads, dim)
    cache = KVCache(shape, num_pages_of(num_rows), dtype, device)
    table = cache.acquire("trial", np.zeros(0, np.int32))

    def attend(start: int, end: int) -> torch.Tensor:
        positions, rows = np.arange(start, end), slice(start, end)
        segment = Segment(table, start, positions, positions, "causal", ())
        packed = PackedBatch([segment], cache)
        new = Projections(query[:, rows], key[:, rows], value[:, rows])
        return packed.attend(0, new, Scoring(dim**-0.5))

    bounds = _bounds(_ATTENTION_STEPS, num_rows)
    steps = [attend(start, end) for start, end in bounds]
    at_once = attend(0, num_rows)
    return all(
        torch.equal(step, at_once[start:end])
        for step, (start, end) in zip(steps, bounds, strict=True)
    )


def _bounds(steps: Iterable[int], num_rows: int) -> list[tuple[int, int]]:
    starts = [0, *np.cumsum(list(steps)).tolist()]
    return [(start, min(end, num_rows)) for start, end in pairwise(starts) if start < num_rows]


def _forward(runner: ModelRunner, table: PageTable, start: int, end: int) -> torch.Tensor:
    positions = np.arange(start, end)
    token_ids = positions * 7919 % runner.vocab_size  # spreads token ids over the vocabulary
    return runner.forward(
        [Segment(table, start, token_ids, positions, "causal", np.arange(end - start))]
    )
