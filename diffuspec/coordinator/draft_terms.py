"""DraftTerms: makes the draft requests of one request."""

from __future__ import annotations

import numpy as np

from diffuspec.control.drafter_weight import AdaptiveWeight
from diffuspec.core.params import MAX_DRAFT_TOKENS, SamplingParams, SpeculationParams
from diffuspec.core.types import MAX_ALTERNATIVES, Draft, DraftRequest, TokenIds, Verdict


class DraftTerms:
    """What one request's draft requests have in common; the drafter's weight may adapt."""

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        sampling: SamplingParams,
        speculation: SpeculationParams,
    ) -> None:
        self._request_id = request_id
        self._num_prompt_tokens = num_prompt_tokens
        self._sampling = sampling
        self._speculation = speculation
        self._prediction = np.array(speculation.prediction, np.int32)
        self._weight = AdaptiveWeight() if speculation.drafter_weight == "adaptive" else None

    def request(self, prefix: TokenIds, length: int) -> DraftRequest:
        """Return the request for a draft of `length` tokens to verify.

        With pre-drafting, one more position is drafted, for the token after a full acceptance.
        """
        speculation = self._speculation
        is_pre_drafting = speculation.num_outcomes != 0
        weight = self._weight.value if self._weight is not None else speculation.drafter_weight
        assert not isinstance(weight, str)
        return DraftRequest(
            request_id=self._request_id,
            prefix=prefix,
            num_draft_tokens=min(length + is_pre_drafting, MAX_DRAFT_TOKENS),
            tree_shape=speculation.tree_shape,
            max_nodes=speculation.max_nodes,
            drafter_weight=weight,
            sampling=self._sampling,
            num_alternatives=MAX_ALTERNATIVES if is_pre_drafting else 0,
            num_prompt_tokens=self._num_prompt_tokens,
            prediction=self._prediction,
        )

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learn which side of a draft was right."""
        if self._weight is not None:
            self._weight.observe(draft, verdict)
