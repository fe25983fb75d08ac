"""Rank 1 of two, in a process of its own: one group after the other, as stdin tells.

A line is `port path exact`. When a group has ended, stdout says `left`, or `lost: ` and why.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from diffuspec.core.config import TargetConfig
from diffuspec.core.errors import VerifierError
from diffuspec.models.target import CausalTarget
from diffuspec.models.tensor_parallel.lockstep import follow
from diffuspec.models.tensor_parallel.rank_group import RankGroup, RankLimits, find_meeting_point

HOST = "127.0.0.1"
LIMITS = RankLimits(meet_seconds=60, compute_seconds=60, message_seconds=60)
MAX_NODES = 16


def config(path: Path, exact: bool) -> TargetConfig:
    return TargetConfig(
        path=path, device="cpu", max_sequences=3, max_tree_nodes=MAX_NODES, exact=exact
    )


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        port, path, exact = line.split()
        store = find_meeting_point(HOST, int(port), LIMITS)
        with RankGroup(store, 1, 2, torch.device("cpu"), LIMITS) as group:
            try:
                follow(CausalTarget.load(config(Path(path), exact == "True"), 2), group)
            except VerifierError as error:
                print("lost:", error, flush=True)
            else:
                print("left", flush=True)


if __name__ == "__main__":
    main()
