"""Prometheus series of decoding steps, kept as plain numbers until somebody asks for them.

Drafting and verifying aside, a step is a millisecond or two of work. A tenth of it went into
Prometheus' own counters.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from diffuspec.core.types import StepStats

_STAGES = ("draft", "search", "verify", "transport", "step")
_COUNTERS = {
    "generation_tokens": "Committed tokens.",
    "spec_decode_num_drafts": "Drafts verified.",
    "spec_decode_num_draft_tokens": "Draft tokens verified.",
    "spec_decode_num_accepted_tokens": "Draft tokens accepted.",
    "wasted_draft_tokens": "Drafted for what did not happen.",
}


class StepSeries(Collector):
    """Counts steps."""

    def __init__(self, prefix: str, buckets: Sequence[float]) -> None:
        """buckets: upper bounds of the times, in seconds, ascending."""
        self._prefix = prefix
        self._buckets = (*buckets, math.inf)
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._accepted: Counter[int] = Counter()  # drafts by their number of accepted tokens
        self._pre_drafts: Counter[str] = Counter()
        self._fallbacks: Counter[str] = Counter()
        self._seconds = dict.fromkeys(_STAGES, 0.0)
        self._in_buckets = {stage: [0] * len(self._buckets) for stage in _STAGES}

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
            self._in_buckets[stage][bisect_left(self._buckets, seconds)] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the series in Prometheus' form."""
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(self._prefix + name, text, value=self._counts[name])
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._counter(name, "Accepted, by position.", "position", self._accepted_at())
        name, text = "pre_drafts", "Verdicts met by drafts ahead."
        yield self._counter(name, text, "result", self._pre_drafts)
        name, text = "fallback", "Steps verified without their draft."
        yield self._counter(name, text, "reason", self._fallbacks)
        text = "Time in a step, by stage."
        times = HistogramMetricFamily(f"{self._prefix}step_seconds", text, labels=["stage"])
        bounds = [*map(str, self._buckets[:-1]), "+Inf"]
        for stage, counts in self._in_buckets.items():
            table = list(zip(bounds, accumulate(counts), strict=True))
            times.add_metric([stage], buckets=table, sum_value=self._seconds[stage])
        yield times

    def _counter(self, name: str, text: str, label: str, counts: dict[str, int]) -> Metric:
        family = CounterMetricFamily(self._prefix + name, text, labels=[label])
        for value, count in list(counts.items()):
            family.add_metric([value], count)
        return family

    def _accepted_at(self) -> dict[str, int]:
        """Return how many drafts had their token at each position accepted, from position 0 on."""
        longest = max(self._accepted, default=0)
        counts = [self._accepted[length] for length in range(longest, 0, -1)]
        reached = list(accumulate(counts))[::-1]
        return {str(position): count for position, count in enumerate(reached)}
