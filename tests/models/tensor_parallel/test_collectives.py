"""Ranks add in their order, to the same bits for a row alone and among many, and vote."""

from __future__ import annotations

import contextlib
import subprocess

import pytest
import torch

from diffuspec.models.tensor_parallel.collectives import all_ranks
from diffuspec.models.tensor_parallel.rank_group import RankGroup, open_meeting_point
from tests.models.tensor_parallel.exchanges import (
    CPU,
    DTYPES,
    NUM_RANKS,
    WIDTHS,
    checksum,
    part,
    sums,
)
from tests.models.tensor_parallel.follower import HOST, LIMITS
from tests.support.forked import forked

pytestmark = pytest.mark.process


def test_ranks_add_in_their_order_and_agree() -> None:
    store = open_meeting_point(HOST, LIMITS)
    module = "tests.models.tensor_parallel.exchanges"
    with contextlib.ExitStack() as stack:
        others = [
            subprocess.Popen(forked("-m", module, rank, store.port), stdout=-1, text=True)
            for rank in range(1, NUM_RANKS)
        ]
        for other in others:
            stack.enter_context(other)
            stack.callback(other.kill)
        with RankGroup(store, 0, NUM_RANKS, CPU, LIMITS) as group:
            pairs = list(sums(0))
            assert all_ranks(True, CPU) and not all_ranks(True, CPU)
            group.gather(0)
        said = [other.communicate()[0].splitlines() for other in others]
    cases = [(width, dtype) for width in WIDTHS for dtype in DTYPES]
    for (at_once, alone), (width, dtype) in zip(pairs, cases, strict=True):
        expected = part(0, width)
        for rank in range(1, NUM_RANKS):
            expected = expected + part(rank, width)
        assert torch.equal(at_once, expected.to(dtype))
        assert torch.equal(alone, at_once[:, :1])
    mine = str([checksum(tensor) for pair in pairs for tensor in pair])
    assert said == [[mine, "True False"]] * (NUM_RANKS - 1)
