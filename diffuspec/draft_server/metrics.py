"""Counts of a draft server: as Prometheus series, and for each engine in one line."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from diffuspec.telemetry.series import SeriesTable
from diffuspec.v1.draft_service_pb2 import DraftSource

if TYPE_CHECKING:
    from diffuspec.draft_server.request import EngineRequest
    from diffuspec.telemetry.draft_spans import EngineSpans

_SOURCES = {
    number: name.removeprefix("DRAFT_SOURCE_").lower() for name, number in DraftSource.items()
}
_SHORT = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class DraftMetrics:
    """The Prometheus series of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.table = table = SeriesTable(self.registry)
        sources = [(name,) for number, name in _SOURCES.items() if number]
        self.drafts = table.counter(
            "drafts_total",
            "Rows answered, by where the draft comes from, or why there is none.",
            ["source"],
            sources,
        )
        self.draft_tokens = table.counter("drafted_tokens_total", "Drafted tokens sent to engines.")
        self.accepted_tokens = table.counter(
            "accepted_tokens_total", "Of these, tokens that engines have accepted."
        )
        self.answer_seconds = table.histogram(
            "draft_answer_seconds", "From the receipt of a step to its answer.", bounds=_SHORT
        )
        self.silent_steps = table.counter(
            "draft_silent_steps_total",
            "Steps that engines did not report, being told that there would be no drafts.",
        )
        self.calls = table.histogram(
            "draft_call_seconds",
            "Calls of the drafter: drafts that engines wait for, and those made ahead.",
            ["kind"],
            _SHORT,
        )
        self.failures = table.counter("draft_failures_total", "Calls of the drafter that failed.")
        self.engines = table.gauge("draft_engines", "Engines that are connected.")
        self.queued = table.gauge("draft_queue", "Drafts that engines wait for, not begun yet.")


class SessionStats:
    """Sums for one engine, which are also added to the server's series; its spans, if exported."""

    def __init__(self, metrics: DraftMetrics, spans: EngineSpans | None) -> None:
        self._metrics = metrics
        self._spans = spans
        self.num_steps = 0
        self.num_silent = 0  # steps that were not reported; num_steps excludes them
        self.num_rows = 0
        self.num_accepted = 0
        self.sources: Counter[str] = Counter()
        self.num_quick = 0  # answers within two milliseconds

    def count_accepted(self, num_tokens: int) -> None:
        self.num_accepted += num_tokens
        self._metrics.accepted_tokens.at().value += num_tokens

    def count_row(
        self, request: EngineRequest, source: DraftSource, num_tokens: int, seconds: float
    ) -> None:
        """Count the answer to one row, sent `seconds` after the step arrived."""
        name = _SOURCES[source]
        if self._spans is not None and request.request_id:
            accepted = request.num_accepted
            self._spans.draft(request.request_id, name, num_tokens, accepted, seconds)
        self.sources[name] += 1
        self.num_rows += 1
        self._metrics.drafts.inc(name)
        self._metrics.draft_tokens.at().value += num_tokens

    def count_silent(self, num_steps: int) -> None:
        self.num_silent += num_steps
        self._metrics.silent_steps.at().value += num_steps

    def end_request(self, request: EngineRequest) -> None:
        if self._spans is not None:
            self._spans.end_request(request.request_id)

    def end(self) -> None:
        if self._spans is not None:
            self._spans.end()

    def count_step(self, seconds: float) -> None:
        self.num_steps += 1
        self.num_quick += seconds <= 0.002
        self._metrics.answer_seconds.at().observe(seconds)

    def __str__(self) -> str:
        shares = ", ".join(
            f"{name} {100 * number / self.num_rows:.0f} %"
            for name, number in self.sources.most_common()
        )
        quick = 100 * self.num_quick / max(self.num_steps, 1)
        accepted = self.num_accepted / max(self.num_rows, 1)
        return (
            f"{self.num_steps} steps, {quick:.0f} % answered within 2 ms, and {self.num_silent} "
            f"without a message; {self.num_rows} rows "
            f"({shares or 'none'}), {accepted:.2f} tokens accepted in the mean"
        )
