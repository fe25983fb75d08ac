"""The choice of a pipeline for a prompt: one that has seen its beginning, unless it is too busy.

Several processes choose, and each knows the requests and prompts of its own clients alone: they
agree by hashing, where `diffuspec.data_parallel.routing`, a single process, compares costs. Nothing
here depends on Ray or gRPC.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

from diffuspec.text.prompt_memory import PromptMemory

LOAD_FACTOR = 1.25  # a pipeline's share of all requests over an even share, at most

_MAX_REMEMBERED = 65_536  # beginnings of prompts


class Router:
    """Remembers which pipeline has seen which beginnings; forgets the oldest."""

    def __init__(self, max_remembered: int = _MAX_REMEMBERED) -> None:
        self._seen: PromptMemory[str] = PromptMemory(max_remembered)

    def rank(self, blocks: Sequence[bytes], loads: Mapping[str, int]) -> list[str]:
        """Return the pipelines of `loads`, which has their numbers of requests, best first.

        The first is the one that saw the longest beginning of the prompt, or else the one that
        every ingress would choose for its first block; if that is busy, the next in that order that
        is not. The others follow by load.
        """
        order = sorted(loads, key=lambda name: _weight(blocks[0], name), reverse=True)
        _, seen = self._seen.longest(blocks) or (0, "")
        if seen in loads:
            order.remove(seen)
            order.insert(0, seen)
        limit = math.ceil(LOAD_FACTOR * (sum(loads.values()) + 1) / max(len(loads), 1))
        first = next((name for name in order if loads[name] + 1 <= limit), "")
        return sorted(order, key=lambda name: (name != first, loads[name]))

    def remember(self, blocks: Sequence[bytes], name: str) -> None:
        """Note that a pipeline has seen a prompt."""
        self._seen.remember(blocks, name)


def _weight(block: bytes, name: str) -> bytes:
    """Return the weight of a pipeline for a prompt: the highest is chosen (rendezvous hashing).

    The loss of a pipeline changes the choice for its own prompts alone.
    """
    return hashlib.blake2b(block, key=name.encode()[:64], digest_size=8).digest()
