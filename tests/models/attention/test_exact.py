"""Exact attention: a row's bits depend only on the rows that it sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffuspec.models.attention.cache import CacheShape, KVCache
from diffuspec.models.attention.exact import ExactPart
from diffuspec.models.attention.scoring import Scoring
from diffuspec.models.attention.segment import Segment

NUM_ROWS = 1216


@pytest.mark.parametrize("num_heads", [2, 6])
@pytest.mark.parametrize("window", [None, 100, 700])
def test_a_row_is_attended_as_if_it_were_alone(num_heads: int, window: int | None) -> None:
    dtype = torch.bfloat16
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(heads, NUM_ROWS, 16, generator=random).to(dtype) for heads in (num_heads, 2, 2)
    )
    cache = KVCache(CacheShape(1, 2, 16), 2, NUM_ROWS, dtype)
    scoring = Scoring(0.25, window)

    def attend(slot: int, start: int, end: int) -> torch.Tensor:
        positions = np.arange(start, end)
        part = ExactPart(Segment(slot, start, positions, positions, "causal", ()), cache)
        rows = slice(start, end)
        return part.attend(0, query[:, rows], key[:, rows], value[:, rows], scoring)

    at_once = attend(0, 0, NUM_ROWS)
    attend(1, 0, 500)
    for start, end in [(500, 501), (501, 518), (518, 600), (600, 601), (601, 1100)]:
        assert torch.equal(attend(1, start, end), at_once[start:end])
    scores = query[:, 1000].unflatten(0, (2, num_heads // 2)) @ key[:, :1001].transpose(1, 2) * 0.25
    if window is not None:
        scores[..., : 1001 - window] = -torch.inf
    expected = scores.float().softmax(-1).to(dtype) @ value[:, :1001]
    assert (at_once[1000] - expected.flatten(0, 1)).abs().max() < 0.02
