"""A rank other than 0, in a process of its own: one group after the other, as stdin tells.

Each line is a `Membership`. When a group has ended, stdout says `left`, or `lost: ` and why.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from diffuspec.core.config import TargetConfig
from diffuspec.core.errors import DiffuspecError
from diffuspec.models.target import CausalTarget
from diffuspec.models.tensor_parallel.lockstep import follow
from diffuspec.models.tensor_parallel.rank_group import RankGroup, RankLimits, find_meeting_point

HOST = "127.0.0.1"
LIMITS = RankLimits(meet_seconds=120, compute_seconds=60, message_seconds=60)
MAX_NODES = 16


@dataclass(frozen=True)
class Membership:
    """What a process needs to know to join a group."""

    port: int
    rank: int
    num_ranks: int
    config: dict[str, Any]  # a TargetConfig

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        return cls(**json.loads(line))

    def follow(self) -> None:
        store = find_meeting_point(HOST, self.port, LIMITS)
        cpu = torch.device("cpu")
        config = TargetConfig.model_validate_json(json.dumps(self.config))
        with RankGroup(store, self.rank, self.num_ranks, cpu, LIMITS) as group:
            with group.loading():
                target = CausalTarget.load(config, self.num_ranks)
            follow(target, group)


def config(path: Path, exact: bool | None = False, **keys: Any) -> TargetConfig:
    return TargetConfig(
        path=path, device="cpu", max_sequences=3, max_tree_nodes=MAX_NODES, exact=exact, **keys
    )


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        try:
            Membership.from_line(line).follow()
        except DiffuspecError as error:
            print("lost:", error, flush=True)
        else:
            print("left", flush=True)


if __name__ == "__main__":
    main()
