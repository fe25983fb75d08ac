"""Statistics of one request, summed from its StepStats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffuspec.core.types import StepStats


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Sums over the steps of a request."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_steps: int  # verifications that committed tokens
    num_drafts: int
    num_draft_tokens: int  # verified draft tokens, on all branches
    num_accepted_tokens: int
    draft_seconds: float
    search_seconds: float
    verify_seconds: float
    total_seconds: float  # time from admission to the last token
    num_fallbacks: int
    num_pre_draft_hits: int = 0
    num_pre_draft_misses: int = 0
    num_wasted_draft_tokens: int = 0
    transport_seconds: float = 0.0
    verify_idle_seconds: float = 0.0
    draft_idle_seconds: float = 0.0
    num_cached_tokens: int = 0  # cached tokens of the prompt

    @property
    def pre_draft_hit_rate(self) -> float:
        """Share of hits among the verdicts for which pre-drafts had been made."""
        tried = self.num_pre_draft_hits + self.num_pre_draft_misses
        return self.num_pre_draft_hits / tried if tried else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Committed tokens per step, including the target's own; 1 for plain decoding."""
        return self.num_output_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.num_output_tokens / self.total_seconds if self.total_seconds else 0.0


def summarize(steps: Sequence[StepStats], num_prompt_tokens: int) -> RequestStats:
    """Sum the steps of a request."""
    return RequestStats(
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=sum(step.num_committed_tokens for step in steps),
        num_steps=len(steps),
        num_drafts=sum(step.num_tree_nodes > 0 for step in steps),
        num_draft_tokens=sum(step.num_tree_nodes for step in steps),
        num_accepted_tokens=sum(step.num_accepted_tokens for step in steps),
        draft_seconds=sum(step.draft_seconds for step in steps),
        search_seconds=sum(step.search_seconds for step in steps),
        verify_seconds=sum(step.verify_seconds for step in steps),
        total_seconds=sum(step.step_seconds for step in steps),
        num_fallbacks=sum(step.fallback is not None for step in steps),
        num_pre_draft_hits=sum(step.pre_draft == "hit" for step in steps),
        num_pre_draft_misses=sum(step.pre_draft == "miss" for step in steps),
        num_wasted_draft_tokens=sum(step.num_wasted_draft_tokens for step in steps),
        transport_seconds=sum(step.transport_seconds for step in steps),
        verify_idle_seconds=sum(step.verify_idle_seconds for step in steps),
        draft_idle_seconds=sum(step.draft_idle_seconds for step in steps),
        num_cached_tokens=steps[0].num_cached_tokens if steps else 0,
    )
