"""The choice of an engine for a prompt: the one with the least to do before it has answered.

All requests of these engines pass through one process, which knows what each engine has read. The
processes of a service of several pipelines know a part each, and so need a rule of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diffuspec.text.prompt_memory import BLOCK_TOKENS, MAX_BLOCKS, PromptMemory

TOKENS_PER_REQUEST = 256  # prompt tokens that take as long to read as another request takes


class EngineRouter:
    """Remembers what each engine has read."""

    def __init__(self, names: Sequence[str], num_slots: int) -> None:
        """num_slots: prefixes that an engine's cache holds."""
        self._read = {name: PromptMemory[None](num_slots * MAX_BLOCKS) for name in names}

    def rank(
        self, blocks: Sequence[bytes], num_tokens: int, num_requests: Mapping[str, int]
    ) -> list[str]:
        """Return the engines of `num_requests`, which has their requests, best first.

        blocks, num_tokens: of the prompt. An engine's cost is its number of requests, and the
        tokens that its cache lacks, in units of TOKENS_PER_REQUEST.
        """

        def cost(name: str) -> tuple[float, int]:
            num_blocks, _ = self._read[name].longest(blocks) or (0, None)
            unread = max(num_tokens - num_blocks * BLOCK_TOKENS, 0)
            return num_requests[name] + unread / TOKENS_PER_REQUEST, num_requests[name]

        return sorted(num_requests, key=cost)

    def remember(self, blocks: Sequence[bytes], name: str) -> None:
        """Note that an engine reads a prompt."""
        self._read[name].remember(blocks, None)

    def forget(self, name: str) -> None:
        """Note that an engine's cache is empty."""
        self._read[name].clear()
