"""The choice of a pipeline for a prompt: one that has seen its beginning, unless it is too busy.

Nothing here depends on Ray or gRPC.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from diffuspec.core.types import TokenIds

BLOCK_TOKENS = 32
MAX_BLOCKS = 64  # of a prompt that are told apart
LOAD_FACTOR = 1.25  # a pipeline's share of all requests over an even share, at most

_MAX_REMEMBERED = 65_536  # beginnings of prompts


def prompt_blocks(token_ids: TokenIds) -> list[bytes]:
    """Return a hash for each beginning of a prompt that ends with a block, the shortest first.

    A prompt below one block is a block by itself.
    """
    data = np.ascontiguousarray(token_ids, "<i4")
    chain, found = hashlib.blake2b(digest_size=8), []
    num_blocks = min(max(len(data) // BLOCK_TOKENS, 1), MAX_BLOCKS)
    for index in range(num_blocks):
        chain.update(data[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS].tobytes())
        found.append(chain.digest())
    return found


class Router:
    """Remembers which pipeline has seen which beginnings; forgets the oldest."""

    def __init__(self, max_remembered: int = _MAX_REMEMBERED) -> None:
        self._seen: OrderedDict[bytes, str] = OrderedDict()
        self._max_remembered = max_remembered

    def rank(self, blocks: Sequence[bytes], loads: Mapping[str, int]) -> list[str]:
        """Return the pipelines of `loads`, which has their numbers of requests, best first.

        The first is the one that saw the longest beginning of the prompt, or else the one that
        every ingress would choose for its first block; if that is busy, the next in that order that
        is not. The others follow by load.
        """
        order = sorted(loads, key=lambda name: _weight(blocks[0], name), reverse=True)
        seen = next((self._seen[one] for one in reversed(blocks) if one in self._seen), "")
        if seen in loads:
            order.remove(seen)
            order.insert(0, seen)
        limit = math.ceil(LOAD_FACTOR * (sum(loads.values()) + 1) / max(len(loads), 1))
        first = next((name for name in order if loads[name] + 1 <= limit), "")
        return sorted(order, key=lambda name: (name != first, loads[name]))

    def remember(self, blocks: Sequence[bytes], name: str) -> None:
        """Note that a pipeline has seen a prompt."""
        for block in blocks:
            self._seen[block] = name
            self._seen.move_to_end(block)
        excess = max(len(self._seen) - self._max_remembered, 0)
        for block in list(islice(self._seen, excess)):
            del self._seen[block]


def _weight(block: bytes, name: str) -> bytes:
    """The highest one wins (rendezvous hashing): the loss of another pipeline changes nothing."""
    return hashlib.blake2b(block, key=name.encode()[:64], digest_size=8).digest()
