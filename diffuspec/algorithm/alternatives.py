"""Alternatives: the likeliest tokens at the root and after each node, for pre-drafting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from diffuspec.algorithm.draft_tree import depths
from diffuspec.algorithm.scoring import Column, Node, Scorer, confidences, make_column
from diffuspec.core.types import DraftTree, Lattice

_Likeliest: TypeAlias = tuple[tuple[int, float], ...]

_HARDLY_REACHED = math.log(0.01)


def find_alternatives(
    nodes: Sequence[Node], tree: DraftTree, lattice: Lattice, scorer: Scorer, count: int
) -> tuple[_Likeliest, ...]:
    """Return at most `count` tokens for the root and for each node; see `Draft.alternatives`.

    `nodes` are those of the tree. The proxy scores runners-up like candidates, except below nodes
    that are reached with less than 1 % probability.
    """
    columns = _columns(lattice, scorer.drafter_weight)
    unassisted = [_likeliest(column, column.logprobs, count) for column in columns] + [()]
    found = []
    for node, depth in zip((None, *nodes), (0, *depths(tree)), strict=True):
        depth = min(depth, len(columns))
        if depth == len(columns) or (node is not None and node.reach < _HARDLY_REACHED):
            found.append(unassisted[depth])
        else:
            scored = scorer.score(columns[depth], [scorer.state_after(node)])[0]
            found.append(_likeliest(columns[depth], confidences(scored), count))
    return tuple(found)


def _columns(lattice: Lattice, weight: float) -> list[Column]:
    """Return the lattice's columns, runners-up included."""
    columns = []
    rows = zip(lattice.token_ids.tolist(), lattice.logprobs.tolist(), strict=True)
    for ids, logprobs in rows:
        size = ids.index(-1) if -1 in ids else len(ids)
        columns.append(make_column(ids[:size], logprobs[:size], weight))
    return columns


def _likeliest(column: Column, logprobs: Sequence[float], count: int) -> _Likeliest:
    pairs = zip(column.token_ids, logprobs, strict=True)
    return tuple(sorted(pairs, key=lambda pair: pair[1], reverse=True)[:count])
