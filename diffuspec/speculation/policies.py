"""Policies for draft lengths.

`paper` follows Eqs. 9-11 literally. They pin the length to its minimum after the first rejection:
both averages are linear with equal weights and start at 0, so the accepted one equals the generated
one only as long as every draft is accepted whole. With `cost_aware`, the default, the lengths with
the most expected tokens per second are chosen: see `lengths`.
"""

from __future__ import annotations

import math
from typing import Protocol

from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Draft, Verdict


class Policy(Protocol):
    """Chooses the lengths of one request's drafts, or leaves that to the costs."""

    @property
    def num_draft_tokens(self) -> int | None:
        """Length of the next draft; 0: no draft; None: by cost."""
        ...

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from the verdict on a draft."""
        ...


class FixedLength:
    """Drafts of one fixed length (0: none), or of lengths chosen by cost (None)."""

    def __init__(self, num_draft_tokens: int | None) -> None:
        self.num_draft_tokens = num_draft_tokens

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        pass


class PaperLength:
    """The paper's controller, ADL.

    G <- (1 - rho) G + rho L_gen,  A <- (1 - rho) A + rho L_acc     (Eqs. 9, 10; G_0 = A_0 = 0)
    k <- clip(ceil(G + delta [A >= G]), k_min, k_max)               (Eq. 11; k_1 = k_max)
    """

    def __init__(self, config: DraftLengthConfig) -> None:
        self.num_draft_tokens = config.max_draft_tokens
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
        self.num_draft_tokens = min(max(length, low), high)


def make_policy(params: SpeculationParams, config: DraftLengthConfig) -> Policy:
    """Return a new policy for one request."""
    if params.policy == "paper":
        return PaperLength(config)
    if params.policy == "cost_aware":
        return FixedLength(None)
    return FixedLength(params.num_draft_tokens if params.policy == "fixed" else 0)
