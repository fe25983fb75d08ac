"""Ranks of a target: this process and others."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch

from diffuspec.core.config import TargetConfig
from diffuspec.core.types import Verdict
from diffuspec.models.target import CausalTarget
from diffuspec.models.tensor_parallel.lockstep import LockstepTarget
from diffuspec.models.tensor_parallel.rank_group import RankGroup, open_meeting_point
from tests.models.tensor_parallel.follower import HOST, LIMITS, Membership
from tests.support.forked import forked
from tests.support.models import make_model, make_phi3_model, save_tokenizer

CPU = torch.device("cpu")
IDLE_SECONDS = 0.1


def save_family(path: Path, family: str) -> Path:
    model = make_phi3_model() if family == "phi3" else make_model(family)
    model.save_pretrained(path)
    save_tokenizer(path)
    return path


def outcomes(verdicts: list[Verdict]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(verdict.token_ids, verdict.accepted_nodes) for verdict in verdicts]


class Follower:
    """The process of a rank other than 0; started when first needed."""

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
    """Ranks of one target; this process is rank 0, the followers are the others."""

    config: TargetConfig
    followers: Sequence[Follower]
    target: LockstepTarget = field(init=False)
    share: CausalTarget = field(init=False)

    def __enter__(self) -> Self:
        store = open_meeting_point(HOST, LIMITS)
        num_ranks = 1 + len(self.followers)
        settings = self.config.model_dump(mode="json")
        for rank, follower in enumerate(self.followers, start=1):
            follower.say(Membership(store.port, rank, num_ranks, settings).to_line())
        self._group = RankGroup(store, 0, num_ranks, CPU, LIMITS)
        with self._group.loading():
            self.share = CausalTarget.load(self.config, num_ranks)
        self.target = LockstepTarget(self.share, self._group, IDLE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run(self.target.close())
        self._group.close()
