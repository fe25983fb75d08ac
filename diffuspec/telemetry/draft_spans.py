"""Spans of a draft server: an engine's stream, its requests, and their drafts.

Spans contain neither users' texts nor answers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from opentelemetry.trace import Span, SpanKind, Tracer, TracerProvider, set_span_in_context

MAX_DRAFT_SPANS = 512  # number of drafts traced per request; later ones are only counted


class DraftSpans:
    """Records the spans of one draft server."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("diffuspec")

    def engine(self, name: str, engine: str, tenant: str) -> EngineSpans:
        """Begin the span of an engine that has said hello."""
        about = {"diffuspec.engine": engine, "diffuspec.tenant": tenant}
        span = self._tracer.start_span(name, kind=SpanKind.SERVER, attributes=about)
        return EngineSpans(self._tracer, span)


@dataclass(slots=True)
class _Request:
    """The span of a request, and sums over its drafts."""

    span: Span
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0

    def end(self) -> None:
        sums = {
            "diffuspec.num_drafts": self.num_drafts,
            "diffuspec.num_draft_tokens": self.num_draft_tokens,
            "diffuspec.num_accepted_tokens": self.num_accepted,
        }
        self.span.set_attributes(sums)
        self.span.end()


class EngineSpans:
    """Records the drafts for one engine."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._requests: dict[str, _Request] = {}

    def draft(
        self,
        request_id: str,
        source: str,
        num_draft_tokens: int,
        num_accepted: int,
        answer_seconds: float,
    ) -> None:
        """Record a draft that is sent now.

        num_accepted: tokens of the previous draft that the engine accepted. answer_seconds: time
        since the engine's step arrived.
        """
        if not self._span.is_recording():
            return
        request = self._request(request_id)
        request.num_drafts += 1
        request.num_draft_tokens += num_draft_tokens
        request.num_accepted += num_accepted
        if request.num_drafts > MAX_DRAFT_SPANS:
            return
        now = time.time_ns()
        about: dict[str, str | int] = {
            "diffuspec.source": source,
            "diffuspec.num_draft_tokens": num_draft_tokens,
            "diffuspec.num_accepted_tokens": num_accepted,
        }
        span = self._tracer.start_span(
            "draft",
            set_span_in_context(request.span),
            attributes=about,
            start_time=now - round(1e9 * answer_seconds),
        )
        span.end(now)

    def _request(self, request_id: str) -> _Request:
        """Return a request; begin its span with its first draft."""
        request = self._requests.get(request_id)
        if request is None:
            about = {"diffuspec.request_id": request_id}
            below = set_span_in_context(self._span)
            span = self._tracer.start_span("request", below, attributes=about)
            request = self._requests[request_id] = _Request(span)
        return request

    def end_request(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            request.end()

    def end(self) -> None:
        """End all spans, because the engine has gone."""
        for request_id in [*self._requests]:
            self.end_request(request_id)
        self._span.end()
