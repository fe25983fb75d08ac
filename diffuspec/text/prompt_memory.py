"""Hashes of prompt beginnings, and values remembered for prompts seen before."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Generic, TypeVar

import numpy as np

from diffuspec.core.types import TokenIds

BLOCK_TOKENS = 32
MAX_BLOCKS = 64  # blocks of a prompt that are distinguished

V = TypeVar("V")


def prompt_blocks(token_ids: TokenIds, salt: str | None = None) -> list[bytes]:
    """Return a hash for each beginning of a prompt that ends at a block, the shortest first.

    A prompt shorter than a block counts as one block. Hashes of different salts differ.
    """
    data = np.ascontiguousarray(token_ids, "<i4")
    chain, found = hashlib.blake2b(digest_size=8), []
    if salt is not None:
        chain.update(hashlib.blake2b(salt.encode("utf-8", "surrogatepass")).digest())
    num_blocks = min(max(len(data) // BLOCK_TOKENS, 1), MAX_BLOCKS)
    for index in range(num_blocks):
        chain.update(data[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS].tobytes())
        found.append(chain.digest())
    return found


class PromptMemory(Generic[V]):
    """Remembers a value for each beginning of a prompt; forgets the oldest beginnings."""

    def __init__(self, max_blocks: int) -> None:
        self._values: OrderedDict[bytes, V] = OrderedDict()
        self._max_blocks = max_blocks

    def remember(self, blocks: Sequence[bytes], value: V) -> None:
        """Store a value for all beginnings of a prompt, replacing older values."""
        for block in blocks:
            self._values[block] = value
            self._values.move_to_end(block)
        excess = max(len(self._values) - self._max_blocks, 0)
        for block in list(islice(self._values, excess)):
            del self._values[block]

    def longest(self, blocks: Sequence[bytes]) -> tuple[int, V] | None:
        """Return the number of blocks and the value of the longest known beginning."""
        for num_blocks in range(len(blocks), 0, -1):
            if (block := blocks[num_blocks - 1]) in self._values:
                return num_blocks, self._values[block]
        return None
