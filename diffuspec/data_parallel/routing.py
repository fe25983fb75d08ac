"""Chooses an engine for a prompt: the one with the least work ahead of the answer.

All requests of these engines pass through one process, which knows what each engine has read. (In a
service of several pipelines each process knows only a part, and so uses another rule.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diffuspec.text.prompt_memory import BLOCK_TOKENS, MAX_BLOCKS, PromptMemory

TOKENS_PER_REQUEST = 256  # prompt tokens whose prefill delays as much as another request


class EngineRouter:
    """Remembers which prompts each engine has read."""

    def __init__(self, names: Sequence[str], num_slots: int) -> None:
        """num_slots: number of prefixes that an engine's cache holds."""
        self._read = {name: PromptMemory[None](num_slots * MAX_BLOCKS) for name in names}

    def rank(
        self, blocks: Sequence[bytes], num_tokens: int, num_requests: Mapping[str, int]
    ) -> list[str]:
        """Return the engines, best first. `num_requests`: number of requests by engine.

        blocks, num_tokens: those of the prompt. An engine's cost is its number of requests plus the
        number of tokens that its cache lacks, in units of TOKENS_PER_REQUEST.
        """

        def cost(name: str) -> tuple[float, int]:
            num_blocks, _ = self._read[name].longest(blocks) or (0, None)
            unread = max(num_tokens - num_blocks * BLOCK_TOKENS, 0)
            return num_requests[name] + unread / TOKENS_PER_REQUEST, num_requests[name]

        return sorted(num_requests, key=cost)

    def remember(self, blocks: Sequence[bytes], name: str) -> None:
        """Record that an engine reads a prompt."""
        self._read[name].remember(blocks, None)

    def forget(self, name: str) -> None:
        """Record that an engine's cache is empty."""
        self._read[name].clear()
