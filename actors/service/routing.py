"""Chooses a pipeline for a prompt: one that has seen the prompt's beginning, unless it is too busy.

Several processes choose, and each knows only its own clients' requests and prompts, so they agree
by hashing. Nothing here depends on Ray or gRPC.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

from diffuspec.text.prompt_memory import PromptMemory

LOAD_FACTOR = 1.25  # a pipeline's number of requests relative to the mean, at most

_MAX_REMEMBERED = 65_536  # number of prompt beginnings kept


class Router:
    """Remembers which pipeline has seen which prompt beginnings; forgets the oldest first."""

    def __init__(self, max_remembered: int = _MAX_REMEMBERED) -> None:
        self._seen: PromptMemory[str] = PromptMemory(max_remembered)

    def rank(self, blocks: Sequence[bytes], loads: Mapping[str, int]) -> list[str]:
        """Return the pipelines in order of preference. `loads`: number of requests by pipeline.

        The first is the pipeline that saw the longest beginning of the prompt, or else the one that
        every ingress would choose for the first block; if that is busy, the next one in this order
        that is not. The rest follow by load.
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
        """Record that a pipeline has seen a prompt."""
        self._seen.remember(blocks, name)


def _weight(block: bytes, name: str) -> bytes:
    """Return a pipeline's weight for a prompt; the highest wins (rendezvous hashing).

    So the loss of a pipeline changes the choice only for prompts that it had.
    """
    return hashlib.blake2b(block, key=name.encode()[:64], digest_size=8).digest()
