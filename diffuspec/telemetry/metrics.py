"""Prometheus series summed from StepStats.

The series have vLLM's names with the prefix `diffuspec_`. Mean acceptance length is committed
tokens per step, as in Spec-Bench; vLLM's is 1 + num_accepted_tokens / num_drafts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry

from diffuspec.core.errors import (
    ContextLengthError,
    DiffuspecError,
    FatalRequestError,
    InvalidRequestError,
    OverloadedError,
    VerifierError,
    VerifierUnavailableError,
)
from diffuspec.core.types import FinishReason, StepStats
from diffuspec.telemetry.series import LabelValues, SeriesTable

_STAGES = ("draft", "search", "verify", "transport", "step")
_FALLBACKS = ("drafter_error", "drafter_unavailable", "invalid_draft")
_FAILURES = (FatalRequestError, VerifierError, VerifierUnavailableError)
_REFUSALS = (ContextLengthError, InvalidRequestError, OverloadedError)
_TOKENS = (1, 2, 5, *(n * 10**e for e in range(1, 5) for n in (1, 2, 5)), 100_000)
_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class RequestTimes:
    """Times of a request's events, by time.monotonic(); 0: not yet."""

    submitted_at: float
    admitted_at: float = 0.0
    first_token_at: float = 0.0
    finished_at: float = 0.0


class Metrics:
    """Prometheus series of one coordinator, in its own registry.

    Gauges and totals of busy time are read from the coordinator when they are collected.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.table = SeriesTable(self.registry)
        self._add_load()
        self._add_requests()
        self._add_latencies()
        self._add_speculation()
        self._add_drafting()
        self._add_times()

    def _add_load(self) -> None:
        gauge = self.table.gauge
        self.running = gauge("num_requests_running", "Requests decoding.")
        self.waiting = gauge(
            "num_requests_waiting", "Requests queued, or waiting for room in the cache."
        )
        self.max_running = gauge("max_requests_running", "Requests that can decode at once.")
        self.max_waiting = gauge("max_requests_waiting", "Requests that can be queued.")
        self.kv_cache_usage = gauge(
            "kv_cache_usage_perc", "Share of the pages of the target's cache that requests use."
        )
        self.pages = gauge("kv_cache_pages", "Pages of 64 tokens in the target's cache.")
        self.pages_used = gauge("kv_cache_pages_used", "Pages of the target's cache in use.")
        self.pages_shared = gauge(
            "kv_cache_pages_shared", "Pages of the target's cache that several requests use."
        )
        counter = self.table.counter
        self.preemptions = counter(
            "num_preemptions_total", "Times that a request lost its pages to older requests."
        )
        self.reread_tokens = counter(
            "reread_tokens_total", "Tokens read again: their pages were lost to others or a fault."
        )
        self.drafters = gauge("num_drafters_available", "Drafters that draft now.")
        self.all_drafters = gauge("num_drafters_expected", "Drafters that should draft.")

    def _add_requests(self) -> None:
        counter, histogram = self.table.counter, self.table.histogram
        self._prompt_tokens = counter("prompt_tokens_total", "Prompt tokens read.").at()
        self._prefix_queries = counter(
            "prefix_cache_queries_total", "Prompt tokens looked for in the target's cache."
        ).at()
        self._prefix_hits = counter(
            "prefix_cache_hits_total", "Prompt tokens found there, which were not computed again."
        ).at()
        self._tokens = counter("generation_tokens_total", "Committed tokens.").at()
        self._finished = counter(
            "request_success_total",
            "Finished requests, by reason.",
            ["finished_reason"],
            [(reason.value,) for reason in FinishReason],
        )
        self._failed = counter(
            "request_failed_total",
            "Requests that an error ended.",
            ["error"],
            [(error.__name__,) for error in _FAILURES],
        )
        self._refused = counter(
            "request_refused_total",
            "Requests refused at submission; OverloadedError: the queue was full.",
            ["error"],
            [(error.__name__,) for error in _REFUSALS],
        )
        self._decision_failures = counter(
            "decision_failures_total",
            "Failures while deciding or learning; decoding goes on, with the models of the start.",
            ["what"],
        )
        self._cancelled = counter(
            "request_cancelled_total", "Requests that their client cancelled."
        ).at()
        self._prompt_sizes = histogram(
            "request_prompt_tokens", "Prompt tokens of finished requests.", bounds=_TOKENS
        ).at()
        self._answer_sizes = histogram(
            "request_generation_tokens", "Committed tokens of finished requests.", bounds=_TOKENS
        ).at()

    def _add_latencies(self) -> None:
        histogram = self.table.histogram
        self._first = histogram(
            "time_to_first_token_seconds", "Submission to the first committed token."
        ).at()
        self._inter_token = histogram(
            "inter_token_latency_seconds",
            "Time per token after a request's first step: a step's time shared by its tokens.",
            bounds=_SHORT,
        ).at()
        self._e2e = histogram("e2e_request_latency_seconds", "Submission to the last token.").at()
        self._queue = histogram("request_queue_time_seconds", "Submission to admission.").at()
        self._prefill = histogram(
            "request_prefill_time_seconds", "Admission to the first token."
        ).at()
        self._decode = histogram("request_decode_time_seconds", "First token to the last.").at()
        self._inference = histogram(
            "request_inference_time_seconds", "Admission to the last token."
        ).at()

    def _add_speculation(self) -> None:
        counter = self.table.counter
        self._drafts = counter("spec_decode_num_drafts_total", "Drafts verified.").at()
        self._draft_tokens = counter(
            "spec_decode_num_draft_tokens_total", "Draft tokens verified, on all branches."
        ).at()
        self._accepted = counter(
            "spec_decode_num_accepted_tokens_total", "Draft tokens accepted."
        ).at()
        self._accepted_lengths: Counter[int] = Counter()  # number of drafts by accepted length
        accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos_total",
            "Drafts whose token at a position, from 0 on, was accepted.",
            ["position"],
        )
        accepted_at.read = lambda: _at_least(self._accepted_lengths)
        self._depths: Counter[int] = Counter()  # number of drafts by depth
        drafted_at = counter(
            "spec_decode_num_drafts_per_pos_total",
            "Drafts with a token at a position, from 0 on.",
            ["position"],
        )
        drafted_at.read = lambda: _at_least(self._depths)

    def _add_drafting(self) -> None:
        counter = self.table.counter
        self._pre_drafts = counter(
            "pre_drafts_total",
            "Verdicts that pre-drafts had been made for: whether one fitted.",
            ["result"],
            [("hit",), ("miss",)],
        )
        self._wasted = counter(
            "wasted_draft_tokens_total", "Tokens pre-drafted for outcomes that did not happen."
        ).at()
        self.audits = counter(
            "audits_total",
            "Answers decoded again without drafts, by result.",
            ["result"],
            [("same",), ("different",), ("skipped",)],
        )
        self._fallbacks = counter(
            "fallback_total",
            "Steps verified without a draft although one was due, by reason.",
            ["reason"],
            [(reason,) for reason in _FALLBACKS],
        )

    def _add_times(self) -> None:
        steps = self.table.histogram(
            "step_seconds", "Time of a request's step, and of its stages.", ["stage"], _SHORT
        )
        self._stages = [steps.at(stage) for stage in _STAGES]
        self.active_seconds = self.table.counter(
            "active_seconds_total", "Time with a request decoding."
        )
        self.busy_seconds = self.table.counter(
            "role_busy_seconds_total", "Time with a call in flight, by role.", ["role"]
        )

    def observe_step(self, step: StepStats, *, is_first: bool = False) -> None:
        """Count a step. is_first: it committed the first token of its request."""
        num_tokens = step.num_committed_tokens
        self._tokens.value += num_tokens
        if not is_first and num_tokens:
            self._inter_token.observe(step.step_seconds / num_tokens, num_tokens)
        if step.num_tree_nodes:
            self._drafts.value += 1
            self._draft_tokens.value += step.num_tree_nodes
            self._accepted.value += step.num_accepted_tokens
            self._accepted_lengths[step.num_accepted_tokens] += 1
            self._depths[step.tree_depth] += 1
        self._wasted.value += step.num_wasted_draft_tokens
        if step.pre_draft is not None:
            self._pre_drafts.inc(step.pre_draft)
        if step.fallback is not None:
            self._fallbacks.inc(step.fallback)
        draft, search, verify, transport, whole = self._stages
        draft.observe(step.draft_seconds)
        search.observe(step.search_seconds)
        verify.observe(step.verify_seconds)
        transport.observe(step.transport_seconds)
        whole.observe(step.step_seconds)

    def observe_admission(self, queue_seconds: float) -> None:
        self._queue.observe(queue_seconds)

    def observe_first_token(
        self, seconds: float, prefill_seconds: float, num_prompt_tokens: int, num_cached_tokens: int
    ) -> None:
        """Count a request's first token, with the times since submission and admission."""
        self._first.observe(seconds)
        self._prefill.observe(prefill_seconds)
        self._prompt_tokens.value += num_prompt_tokens
        self._prefix_queries.value += num_prompt_tokens
        self._prefix_hits.value += num_cached_tokens

    def observe_finish(
        self, reason: FinishReason, num_prompt_tokens: int, num_tokens: int, times: RequestTimes
    ) -> None:
        self._finished.inc(reason.value)
        self._prompt_sizes.observe(num_prompt_tokens)
        self._answer_sizes.observe(num_tokens)
        self._e2e.observe(times.finished_at - times.submitted_at)
        self._inference.observe(times.finished_at - times.admitted_at)
        self._decode.observe(times.finished_at - times.first_token_at)

    def observe_failure(self, error: DiffuspecError) -> None:
        self._failed.inc(type(error).__name__)

    def observe_refusal(self, error: DiffuspecError) -> None:
        self._refused.inc(type(error).__name__)

    def observe_cancel(self) -> None:
        self._cancelled.value += 1

    def observe_decision_failure(self, what: str) -> None:
        """Count a failure while deciding or learning."""
        self._decision_failures.inc(what)


def _at_least(lengths: Mapping[int, int]) -> dict[LabelValues, float]:
    """Return how many lengths exceed each position, from 0 on."""
    lengths = dict(lengths)
    longest = max(lengths, default=0)
    reached = [*accumulate(lengths.get(length, 0) for length in range(longest, 0, -1))]
    return {(str(position),): count for position, count in enumerate(reversed(reached))}
