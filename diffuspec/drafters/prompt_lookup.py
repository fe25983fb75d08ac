"""Prompt lookup (PLD): drafts what followed the last tokens earlier in the text.

Algorithm and constants of Spec-Bench's model/pld/pld.py, after Saxena's prompt-lookup-decoding: for
n = 3, 2, 1 take the earliest occurrence of the last n tokens that is followed by a whole draft; if
there is none, there is no draft. There is no model: nothing is loaded, cached or released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffuspec.core.drafter_config import PromptLookupConfig
from diffuspec.core.interfaces import PathScorer
from diffuspec.core.types import Draft, DraftRequest, TokenIds
from diffuspec.drafters.kind import DrafterKind, Target
from diffuspec.drafters.tree_builder import TreeBuilder, draft_each

# P(token accepted | parent accepted) by the number of matching tokens before it: 1, 2, and so on,
# drafted ones included. Measured on the embedded pair's questions.
_PRIORS = (0.28, 0.53, 0.75, 0.87, 0.92)
_CONFIDENCES = tuple(math.log(prior) for prior in _PRIORS)


class PromptLookupDrafter:
    """Drafts a chain of tokens, using only the prefix."""

    def __init__(self, config: PromptLookupConfig, eos_token_ids: Sequence[int]) -> None:
        self._config = config
        self._eos_token_ids = frozenset(eos_token_ids)

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in order; an empty one if there is no match."""
        return draft_each(requests, self._draft)

    async def release(self, request_id: str) -> None:
        pass

    def close(self) -> None:
        pass

    def _draft(self, request: DraftRequest) -> Draft:
        config, prefix = self._config, request.prefix
        length = min(config.num_draft_tokens, request.num_draft_tokens, request.max_nodes)
        start, num_matched = find_repeat(prefix, config.max_ngram_tokens, length)
        builder = TreeBuilder(request, self._eos_token_ids)
        if num_matched:
            confidences = [_confidence(num_matched + depth) for depth in range(length)]
            builder.add_chain(prefix[start : start + length].tolist(), confidences)
        return builder.draft()


def find_repeat(text: TokenIds, max_ngram_tokens: int, num_following: int) -> tuple[int, int]:
    """Return where a draft of num_following tokens starts, and how many tokens matched.

    (0, 0): no n-gram at the end of the text occurs earlier with that many tokens after it.
    """
    for size in range(min(max_ngram_tokens, len(text)), 0, -1):
        num_places = len(text) - size - num_following + 1
        if num_places < 1:
            continue
        is_match = text[:num_places] == text[-size]
        for offset in range(1, size):
            is_match &= text[offset : offset + num_places] == text[offset - size]
        place = int(is_match.argmax())
        if is_match[place]:
            return place + size, size
    return 0, 0


def _confidence(num_matched: int) -> float:
    return _CONFIDENCES[min(num_matched, len(_CONFIDENCES)) - 1]


def _load(
    config: PromptLookupConfig, target: Target, path_scorer: PathScorer | None
) -> PromptLookupDrafter:
    return PromptLookupDrafter(config, target.info.eos_token_ids)


KIND = DrafterKind(PromptLookupConfig, _load)
