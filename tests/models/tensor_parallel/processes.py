"""Two ranks of a target: this process and one more."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import torch

from tests.support.forked import forked
from diffuspec.core.types import Verdict
from diffuspec.models.target import CausalTarget
from diffuspec.models.tensor_parallel.lockstep import LockstepTarget
from diffuspec.models.tensor_parallel.rank_group import RankGroup, open_meeting_point
from tests.models.tensor_parallel.follower import HOST, LIMITS, config
from tests.support.models import make_model, save_tokenizer

CPU = torch.device("cpu")
IDLE_SECONDS = 0.1


def save_family(path: Path, family: str) -> Path:
    make_model(family).save_pretrained(path)
    save_tokenizer(path)
    return path


def outcomes(verdicts: list[Verdict]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(verdict.token_ids, verdict.accepted_nodes) for verdict in verdicts]


class Follower:
    """The process of rank 1; started when first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                forked("-m", "tests.models.tensor_parallel.follower"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """Kill the process, and wait until its output ends: what was started only stands for it."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@dataclass
class Ranks:
    """Two ranks of one target; this process is rank 0."""

    path: Path
    follower: Follower
    exact: bool = False
    target: LockstepTarget = field(init=False)
    share: CausalTarget = field(init=False)

    def __enter__(self) -> Ranks:
        store = open_meeting_point(HOST, LIMITS)
        self.follower.say(f"{store.port} {self.path} {self.exact}")
        self._group = RankGroup(store, 0, 2, CPU, LIMITS)
        self.share = CausalTarget.load(config(self.path, self.exact), num_ranks=2)
        self.target = LockstepTarget(self.share, self._group, IDLE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run(self.target.close())
        self._group.close()
