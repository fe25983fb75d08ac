"""Adaptive draft length (ADL): how many tokens to draft, and how many of them to verify.

`paper` follows Eqs. 9-11 to the letter. They pin the length to its floor after the first rejection:
both averages are linear with equal weights and start at 0, so the accepted one equals the generated
one only while every draft is accepted whole. `cost_aware` is ours: see CostAwareDraftLength.
"""

from __future__ import annotations

import math
from typing import Protocol

from diffuspec.control.cost_aware import CostAwareDraftLength, Economics
from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.params import DraftLengthPolicy, SpeculationParams
from diffuspec.core.types import Draft, Verdict


class DraftLength(Protocol):
    """Sizes one request's drafts."""

    def num_draft_tokens(self, limit: int, num_unread: int = 0) -> int:
        """Return the length of the next draft, at most limit (1 or more); 0: decode without.

        num_unread: tokens of the prefix that the drafter has to read for it, if it is a new one's.
        """
        ...

    def pre_draft_length(self, limit: int) -> int:
        """Return the length of a pre-draft, at most limit; 0: none. Changes nothing."""
        ...

    def use_pre_draft(self, num_draft_tokens: int) -> None:
        """Note that the next draft is a pre-draft of this length."""
        ...

    def trim(self, draft: Draft) -> Draft:
        """Return the part of a draft worth verifying."""
        ...

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from the verdict on a trimmed draft."""
        ...


class FixedDraftLength:
    """Drafts of one fixed length; 0 is plain decoding."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def num_draft_tokens(self, limit: int, num_unread: int = 0) -> int:
        return min(self._num_draft_tokens, limit)

    def pre_draft_length(self, limit: int) -> int:
        return min(self._num_draft_tokens, limit)

    def use_pre_draft(self, num_draft_tokens: int) -> None:
        pass

    def trim(self, draft: Draft) -> Draft:
        return draft

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        pass


class PaperDraftLength(FixedDraftLength):
    """The paper's controller.

    G <- (1 - rho) G + rho L_gen,  A <- (1 - rho) A + rho L_acc     (Eqs. 9, 10; G_0 = A_0 = 0)
    k <- clip(ceil(G + delta [A >= G]), k_min, k_max)               (Eq. 11; k_1 = k_max)
    """

    def __init__(self, config: DraftLengthConfig) -> None:
        super().__init__(config.max_draft_tokens)
        self._config = config
        self._generated = 0.0  # G
        self._accepted = 0.0  # A

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        config, rho = self._config, self._config.smoothing
        self._generated += rho * (draft.num_tokens_before_eos - self._generated)
        self._accepted += rho * (verdict.num_accepted_tokens - self._accepted)
        growth = config.growth if self._accepted >= self._generated else 0
        length = math.ceil(self._generated + growth)
        low, high = config.min_draft_tokens, config.max_draft_tokens
        self._num_draft_tokens = min(max(length, low), high)


def make_draft_length(
    params: SpeculationParams, config: DraftLengthConfig, economics: Economics
) -> DraftLength:
    """Return a new controller for one request."""
    policy: DraftLengthPolicy = params.policy
    if policy == "paper":
        return PaperDraftLength(config)
    if policy == "cost_aware":
        return CostAwareDraftLength(economics)
    return FixedDraftLength(params.num_draft_tokens if policy == "fixed" else 0)
