"""SAM decoding, with Token Recycling where nothing matches: the main mode of the SAMD paper.

Algorithm and constants of Spec-Bench's model/samd with `token_recycle` as the auxiliary drafter,
after Hu et al., SAM Decoding (arXiv 2411.10666): if the last five or more tokens of the text match,
the forty tokens after the match are drafted; otherwise, Token Recycling's tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from diffuspec.core.drafter_config import SamdRecyclingConfig, SuffixAutomatonConfig
from diffuspec.core.interfaces import PathScorer
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.drafters.kind import DrafterKind, Target
from diffuspec.drafters.samd import TEXT_BIAS, SuffixAutomatonDrafter, load_samd
from diffuspec.drafters.token_recycling import TokenRecyclingDrafter
from diffuspec.drafters.tree_builder import draft_each


class SamdRecyclingDrafter:
    """Uses one of two drafters for each draft; Token Recycling always observes the verifier."""

    def __init__(
        self, samd: SuffixAutomatonDrafter, recycling: TokenRecyclingDrafter, min_match_tokens: int
    ) -> None:
        """Both drafters are closed together with this one."""
        self._samd = samd
        self._recycling = recycling
        self._min_match_tokens = min_match_tokens

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in order."""
        await self._samd.read(requests)
        return draft_each(requests, self._draft)

    async def release(self, request_id: str) -> None:
        await self._samd.release(request_id)
        await self._recycling.release(request_id)

    def close(self) -> None:
        self._samd.close()
        self._recycling.close()

    def _draft(self, request: DraftRequest) -> Draft:
        own, given = self._samd.find(request)
        if max(own.num_tokens, given.num_tokens - TEXT_BIAS) < self._min_match_tokens:
            return self._recycling.draft_one(request)
        self._recycling.note(request.request_id)  # it also learns from this verification
        return self._samd.draft_after(request, own, given)


def _load(
    config: SamdRecyclingConfig, target: Target, path_scorer: PathScorer | None
) -> SamdRecyclingDrafter:
    samd = SuffixAutomatonConfig(
        num_draft_tokens=config.num_draft_tokens,
        draft_tokens_per_match=MAX_DRAFT_TOKENS,  # all of them, whatever the length of the match
        texts=config.texts,
        max_text_tokens=config.max_text_tokens,
    )
    recycling = TokenRecyclingDrafter(target.info, target.observed)
    return SamdRecyclingDrafter(load_samd(samd, target), recycling, config.min_match_tokens)


KIND = DrafterKind(SamdRecyclingConfig, _load, observes=True)
