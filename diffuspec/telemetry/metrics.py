"""Figures summed from StepStats: per request, and as Prometheus series.

The series have vLLM's names with the prefix `diffuspec_`. Mean acceptance length is committed
tokens per step, as in Spec-Bench; vLLM's is 1 + num_accepted_tokens / num_drafts.
"""

from __future__ import annotations

import collections
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from diffuspec.core.errors import DiffuspecError
from diffuspec.core.types import FinishReason, StepStats

_PREFIX = "diffuspec_"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BOUNDS = (*_SECONDS, math.inf)
_STAGES = ("draft", "search", "verify", "transport", "step")
_COUNTERS = {
    "generation_tokens": "Committed tokens.",
    "spec_decode_num_drafts": "Drafts verified.",
    "spec_decode_num_draft_tokens": "Draft tokens verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens accepted.",
    "wasted_draft_tokens": "Tokens pre-drafted for outcomes that did not happen.",
}


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Sums over the steps of a request."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_steps: int  # verifications that committed tokens
    num_drafts: int
    num_draft_tokens: int  # verified, on all branches
    num_accepted_tokens: int
    draft_seconds: float
    search_seconds: float
    verify_seconds: float
    total_seconds: float  # from admission to the last token
    num_fallbacks: int
    num_pre_draft_hits: int = 0
    num_pre_draft_misses: int = 0
    num_wasted_draft_tokens: int = 0
    transport_seconds: float = 0.0
    verify_idle_seconds: float = 0.0
    draft_idle_seconds: float = 0.0

    @property
    def pre_draft_hit_rate(self) -> float:
        """Share of hits among the verdicts that pre-drafts had been made for."""
        tried = self.num_pre_draft_hits + self.num_pre_draft_misses
        return self.num_pre_draft_hits / tried if tried else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Committed tokens per step, the target's own included; 1 for plain decoding."""
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
    )


class Metrics:
    """Prometheus series of one coordinator, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        reg = self.registry

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(_PREFIX + name, text, labels, registry=reg)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(_PREFIX + name, text, registry=reg)

        def histogram(name: str, text: str) -> Histogram:
            return Histogram(_PREFIX + name, text, registry=reg, buckets=_SECONDS)

        self.running = gauge("num_requests_running", "Requests decoding.")
        self.waiting = gauge("num_requests_waiting", "Requests queued.")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of finished requests.")
        self._finished = counter("request_success", "Finished requests.", ["finished_reason"])
        self._failed = counter("request_failed", "Requests that ended in an error.", ["error"])
        self._refused = counter("request_refused", "Requests refused at submission.", ["error"])
        self._cancelled = counter("request_cancelled", "Requests cancelled by their client.")
        self._steps = StepSeries()
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


class StepSeries(Collector):
    """Prometheus series of steps, kept as plain numbers until they are collected.

    Prometheus' own counters would take a tenth of the millisecond or two that a step takes besides
    drafting and verifying.
    """

    def __init__(self) -> None:
        self._counts = dict.fromkeys(_COUNTERS, 0)
        # Numbers of drafts, by their number of accepted tokens.
        self._accepted: collections.Counter[int] = collections.Counter()
        self._pre_drafts: collections.Counter[str] = collections.Counter()
        self._fallbacks: collections.Counter[str] = collections.Counter()
        self._seconds = dict.fromkeys(_STAGES, 0.0)
        self._in_buckets = {stage: [0] * len(_BOUNDS) for stage in _STAGES}

    def observe(self, step: StepStats) -> None:
        counts = self._counts
        counts["generation_tokens"] += step.num_committed_tokens
        counts["wasted_draft_tokens"] += step.num_wasted_draft_tokens
        if step.num_tree_nodes:
            counts["spec_decode_num_drafts"] += 1
            counts["spec_decode_num_draft_tokens"] += step.num_tree_nodes
            counts["spec_decode_num_accepted_tokens"] += step.num_accepted_tokens
            self._accepted[step.num_accepted_tokens] += 1
        if step.pre_draft is not None:
            self._pre_drafts[step.pre_draft] += 1
        if step.fallback is not None:
            self._fallbacks[step.fallback] += 1
        for stage in _STAGES:
            seconds: float = getattr(step, f"{stage}_seconds")
            self._seconds[stage] += seconds
            self._in_buckets[stage][bisect_left(_BOUNDS, seconds)] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the series as Prometheus' metric families."""
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(_PREFIX + name, text, value=self._counts[name])
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._counter(
            name, "Draft tokens accepted, by position.", "position", self._accepted_at()
        )
        name, text = "pre_drafts", "Verdicts that pre-drafts had been made for."
        yield self._counter(name, text, "result", self._pre_drafts)
        name, text = "fallback", "Steps verified without a draft."
        yield self._counter(name, text, "reason", self._fallbacks)
        text = "Time in a step, by stage."
        times = HistogramMetricFamily(f"{_PREFIX}step_seconds", text, labels=["stage"])
        bounds = [*map(str, _SECONDS), "+Inf"]
        for stage, counts in self._in_buckets.items():
            table = list(zip(bounds, accumulate(counts), strict=True))
            times.add_metric([stage], buckets=table, sum_value=self._seconds[stage])
        yield times

    def _counter(self, name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
        for value, count in list(counts.items()):
            family.add_metric([value], count)
        return family

    def _accepted_at(self) -> dict[str, int]:
        """Return the number of drafts whose token was accepted, by position from 0 on."""
        longest = max(self._accepted, default=0)
        counts = [self._accepted[length] for length in range(longest, 0, -1)]
        reached = list(accumulate(counts))[::-1]
        return {str(position): count for position, count in enumerate(reached)}
