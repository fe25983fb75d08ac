"""One of four ranks that add tensors; it prints the checksums of what it got.

Arguments: the rank, and the port of the meeting point.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator

import torch
from torch import Tensor

from diffuspec.models.tensor_parallel.collectives import all_ranks, sum_of_ranks
from diffuspec.models.tensor_parallel.rank_group import RankGroup, find_meeting_point
from tests.models.tensor_parallel.follower import HOST, LIMITS

CPU = torch.device("cpu")
NUM_RANKS = 4
NUM_ROWS = 1100
WIDTHS = (256, 255)  # the first can be shared out
DTYPES = (torch.float32, torch.bfloat16)


def part(rank: int, width: int) -> Tensor:
    """Return a rank's summand, [1, rows, width]: large and small numbers, so that order matters."""
    random = torch.Generator().manual_seed(rank)
    shape = 1, NUM_ROWS, width
    exponents = torch.randint(-8, 9, shape, generator=random)
    return torch.randn(shape, generator=random).ldexp(exponents)


def sums(rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return sums of all rows at once and of the first alone, in every width and type."""
    for width in WIDTHS:
        for dtype in DTYPES:
            mine = part(rank, width)
            yield sum_of_ranks(mine, dtype), sum_of_ranks(mine[:, :1].contiguous(), dtype)


def checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.float().numpy().tobytes())


def main() -> None:
    rank, port = map(int, sys.argv[1:])
    with RankGroup(find_meeting_point(HOST, port, LIMITS), rank, NUM_RANKS, CPU, LIMITS) as group:
        print([checksum(tensor) for pair in sums(rank) for tensor in pair])
        print(all_ranks(True, CPU), all_ranks(rank != 2, CPU), flush=True)
        group.gather(0)


if __name__ == "__main__":
    main()
