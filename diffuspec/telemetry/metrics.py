"""What is measured, all of it read off StepStats: per request, and as Prometheus series.

The series carry vLLM's names with the prefix `diffuspec_`. Mean acceptance length is
1 + num_accepted_tokens / num_drafts there; here it is committed tokens per step (Spec-Bench).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from diffuspec.core.errors import DiffuspecError
from diffuspec.core.types import FinishReason, StepStats
from diffuspec.telemetry.step_series import StepSeries

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class RequestStats:
    """The sums of a request's steps."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_steps: int  # verifications that committed tokens
    num_drafts: int
    num_draft_tokens: int  # verified, over all branches
    num_accepted_tokens: int
    draft_seconds: float
    search_seconds: float
    verify_seconds: float
    total_seconds: float  # from admission to the last token, queueing left out
    num_fallbacks: int
    num_pre_draft_hits: int = 0
    num_pre_draft_misses: int = 0
    num_wasted_draft_tokens: int = 0
    transport_seconds: float = 0.0
    verify_idle_seconds: float = 0.0
    draft_idle_seconds: float = 0.0

    @property
    def pre_draft_hit_rate(self) -> float:
        """Share of verdicts that found their draft made ahead, where any was."""
        tried = self.num_pre_draft_hits + self.num_pre_draft_misses
        return self.num_pre_draft_hits / tried if tried else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Committed tokens per step, the target's own included (plain decoding: 1)."""
        return self.num_output_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.num_output_tokens / self.total_seconds if self.total_seconds else 0.0


def summarize(steps: Sequence[StepStats], num_prompt_tokens: int) -> RequestStats:
    """Add up a request's steps."""
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
    )


class Metrics:
    """Prometheus series of one coordinator, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        reg = self.registry

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"diffuspec_{name}", text, labels, registry=reg)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(f"diffuspec_{name}", text, registry=reg, buckets=_SECONDS)

        self.running = Gauge("diffuspec_num_requests_running", "Requests decoding.", registry=reg)
        self.waiting = Gauge("diffuspec_num_requests_waiting", "Requests queued.", registry=reg)
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._finished = counter("request_success", "Finished requests.", ["finished_reason"])
        self._failed = counter("request_failed", "Requests that an error ended.", ["error"])
        self._refused = counter("request_refused", "Requests not taken at all.", ["error"])
        self._cancelled = counter("request_cancelled", "Requests cancelled by their owner.")
        self._steps = StepSeries("diffuspec_", _SECONDS)
        reg.register(self._steps)
        self._queue = histogram("request_queue_time_seconds", "Submission to admission.")
        self._first = histogram("time_to_first_token_seconds", "Submission to first token.")
        self._e2e = histogram("e2e_request_latency_seconds", "Submission to last token.")

    def observe_step(self, step: StepStats) -> None:
        self._steps.observe(step)

    def observe_admission(self, queue_seconds: float) -> None:
        self._queue.observe(queue_seconds)

    def observe_first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def observe_finish(self, reason: FinishReason, num_prompt_tokens: int, seconds: float) -> None:
        self._finished.labels(reason.value).inc()
        self._prompt_tokens.inc(num_prompt_tokens)
        self._e2e.observe(seconds)

    def observe_failure(self, error: DiffuspecError) -> None:
        self._failed.labels(type(error).__name__).inc()

    def observe_refusal(self, error: DiffuspecError) -> None:
        self._refused.labels(type(error).__name__).inc()

    def observe_cancel(self) -> None:
        self._cancelled.inc()
