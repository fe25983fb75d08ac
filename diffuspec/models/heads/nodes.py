"""Nodes of a draft tree that a head grows level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch

from diffuspec.core.types import DraftRequest
from diffuspec.models.heads.candidates import Candidates
from diffuspec.models.heads.features import Features


@dataclass(slots=True, eq=False)
class DraftNode:
    """A token that may be drafted; the root of a tree is the last prefix token."""

    logprob: float = 0.0  # ln P(right | parent right)
    score: float = 0.0  # ln P(right and all above it right)
    path: tuple[int, ...] = ()  # tokens from below the root to this one
    ranks: tuple[int, ...] = ()  # ranks of the tokens of `path` among their siblings
    rows: tuple[int, ...] = ()  # the head's rows of the nodes from below the root to this one
    output: torch.Tensor | None = None  # the head's output at this node, if the head keeps it
    above: DraftNode | None = None
    children: list[DraftNode] = field(default_factory=list)

    @property
    def token_id(self) -> int:
        return self.path[-1]

    def grow(self, candidates: Candidates) -> list[DraftNode]:
        """Add the candidates as children, and return these."""
        self.children = [
            DraftNode(
                logprob,
                self.score + logprob,
                (*self.path, token_id),
                (*self.ranks, rank),
                above=self,
            )
            for rank, (token_id, logprob) in enumerate(candidates)
        ]
        return self.children


Level: TypeAlias = Sequence[tuple[DraftRequest, Sequence[DraftNode]]]


class LevelHead(Protocol):
    """A head whose guesses depend on the drafted tokens: finds candidates level by level."""

    def begin(self, requests: Sequence[DraftRequest], features: Sequence[Features]) -> None:
        """Read the prefixes to draft for next; their ids differ."""
        ...

    def candidates(self, level: Level, count: int) -> list[list[Candidates]]:
        """Return the `count` likeliest tokens below each node of each request begun with.

        The nodes of a request are of one depth: the root, and then some below the last ones.
        """
        ...
