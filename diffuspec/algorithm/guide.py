"""Guides: what may follow in structured output; connects path search and grammars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from diffuspec.algorithm.scoring import EMPTY_COLUMN, Column, Node, make_column
from diffuspec.core.types import DraftRequest

_FORCED_LOGPROB = math.log(0.99)  # the text is certain, but not how it splits into tokens


class Guide(Protocol):
    """The tokens that may follow one prefix."""

    def next_tokens(self, path: Sequence[int], candidates: Sequence[int]) -> list[int]:
        """Return the candidates that may follow a path below the prefix, never EOS.

        If the grammar dictates the next text, return only its first token, candidate or not.
        """
        ...


class Guides(Protocol):
    """Guides of requests with structured output."""

    def is_ready(self, requests: Sequence[DraftRequest]) -> bool:
        """Return whether `prepare` has nothing to do."""
        ...

    def prepare(self, requests: Sequence[DraftRequest]) -> None:
        """Prepare for `guide`, which takes time. May be called from another thread."""
        ...

    def guide(self, request: DraftRequest) -> Guide | None:
        """Return the guide of a prefix, valid until the next call; None: anything may follow."""
        ...


def admitted(column: Column, parent: Node | None, guide: Guide) -> Column:
    """Return the part of a column that may follow a node.

    If the grammar dictates the next token, that is the only one, even if it is not in the column.
    """
    token_ids = guide.next_tokens(_path_of(parent), column.token_ids)
    if not token_ids:
        return EMPTY_COLUMN
    if len(token_ids) == 1 and token_ids[0] not in column.token_ids:
        return make_column(token_ids, [_FORCED_LOGPROB], 1.0)
    chosen = [column.token_ids.index(token_id) for token_id in token_ids]
    return Column(
        token_ids,
        [column.logprobs[i] for i in chosen],
        [column.weighted[i] for i in chosen],
        min(math.log(sum(math.exp(column.logprobs[i]) for i in chosen)), 0.0),
    )


def drop_others(nodes: Sequence[Node], guide: Guide) -> list[Node]:
    """Drop the nodes that the guide does not admit after their parents, with their descendants."""
    kept: list[Node] = []
    ids: set[int] = set()
    for node in nodes:
        if node.parent is not None and id(node.parent) not in ids:
            continue
        if node.token_id in guide.next_tokens(_path_of(node.parent), [node.token_id]):
            kept.append(node)
            ids.add(id(node))
    return kept


def _path_of(node: Node | None) -> list[int]:
    """Return the tokens from the root to a node."""
    token_ids = []
    while node is not None:
        token_ids.append(node.token_id)
        node = node.parent
    return token_ids[::-1]
