"""Candidates from a head's logits, and the nodes of a draft tree grown level by level."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, Protocol, TypeAlias

import torch

from diffuspec.algorithm.sampling import perturb_logits
from diffuspec.algorithm.shaping import History
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import DraftRequest
from diffuspec.models.heads.features import Features
from diffuspec.models.kernels.operations import most_probable

Candidates: TypeAlias = list[tuple[int, float]]  # token ids and ln P(accepted); likeliest first


class Place(NamedTuple):
    """The position of a row's token, and the drafted tokens before it."""

    request: DraftRequest
    position: int  # absolute index of the token
    path: Sequence[int]  # drafted tokens before it, as far as the head knows them


def likeliest_after(
    logits: torch.Tensor, places: Sequence[Place], target: TargetInfo, count: int
) -> list[Candidates]:
    """Return each row's likeliest tokens, with the request's own sampling noise.

    There are `count` of them, or fewer if top-k and top-p leave fewer. logits [R, V] are in the
    order of `places`; those of one request are adjacent.
    """
    logits = logits.float()
    logits[:, target.vocab_size :] = -torch.inf
    rows = torch.cat(list(_perturbed(logits, places, target)))
    ids, values = most_probable(rows, count)
    return [
        [pair for pair in zip(row_ids, row, strict=True) if pair[1] > -torch.inf]
        for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def _perturbed(
    logits: torch.Tensor, places: Iterable[Place], target: TargetInfo
) -> Iterable[torch.Tensor]:
    first = 0
    for _, group in groupby(places, key=lambda place: id(place.request)):
        mine = list(group)
        request, positions = mine[0].request, [place.position for place in mine]
        paths = [place.path for place in mine]
        history = History(request.prefix, request.num_prompt_tokens, paths)
        rows = logits[first : first + len(mine)]
        first += len(mine)
        yield perturb_logits(rows, request.sampling, positions, history, target.eos_token_ids)


@dataclass(slots=True, eq=False)
class DraftNode:
    """A token that may be drafted; the root of a tree is the last prefix token."""

    logprob: float = 0.0  # ln P(accepted | parent accepted)
    score: float = 0.0  # ln P(this and all nodes above accepted)
    path: tuple[int, ...] = ()  # tokens from the root's child down to this one
    ranks: tuple[int, ...] = ()  # ranks of the tokens of `path` among their siblings
    rows: tuple[int, ...] = ()  # the head's rows for the nodes of `path`
    output: torch.Tensor | None = None  # the head's output at this node, if it keeps outputs
    above: DraftNode | None = None
    children: list[DraftNode] = field(default_factory=list)

    @property
    def token_id(self) -> int:
        return self.path[-1]

    def grow(self, candidates: Candidates) -> list[DraftNode]:
        """Add the candidates as children, and return the new nodes."""
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
        """Return the `count` likeliest tokens below each node of each request passed to `begin`.

        The nodes of a request have one depth: first the root, then children of earlier nodes.
        """
        ...
