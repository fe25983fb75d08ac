"""Spans of requests: queue, prefill, and decode with its steps, inside the caller's span.

They are recorded from the outputs of a request, without the coordinator's knowledge. Spans contain
neither users' texts nor answers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping

from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    TracerProvider,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from diffuspec.core.types import RequestOutput, StepStats
from diffuspec.telemetry import context

MAX_STEP_SPANS = 512  # number of steps traced per request; later ones are only counted

_W3C = TraceContextTextMapPropagator()


class RequestSpans:
    """Records the spans of one process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("diffuspec")

    @contextlib.contextmanager
    def serving(self, name: str) -> Iterator[Span]:
        """Record the span of an incoming call; the spans of its requests are nested in it."""
        span = self._tracer.start_span(name, _parent(), SpanKind.SERVER)
        context.traceparent.set(_traceparent(span))
        try:
            yield span
        finally:
            span.end()

    async def follow(
        self, outputs: AsyncGenerator[RequestOutput], request_id: str, num_prompt_tokens: int
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the outputs of a request, and record its spans, however it ends."""
        started_at = time.time_ns()
        span = self._tracer.start_span("request", _parent(), start_time=started_at)
        spans = _Spans(self._tracer, span, started_at)
        span.set_attribute("diffuspec.request_id", request_id)
        span.set_attribute("diffuspec.num_prompt_tokens", num_prompt_tokens)
        try:
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    if span.is_recording():
                        spans.add(output)
                    yield output
        except Exception as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            spans.end()


class _Spans:
    """The spans of one request. The first output marks the end of the prefill."""

    def __init__(self, tracer: Tracer, span: Span, started_at: int) -> None:
        self._tracer = tracer
        self._request = span
        self._below = set_span_in_context(span)
        self._decode: Span | None = None
        self._last = started_at  # end of the last span, in nanoseconds since 1970
        self._num_steps = self._num_tokens = self._num_accepted = 0
        self._finish_reason = "cancelled"

    def add(self, output: RequestOutput) -> None:
        now, step = time.time_ns(), output.step
        began = max(now - round(1e9 * step.step_seconds), self._last)
        if not self._num_steps:
            self._span("queue", self._below, self._last, began, {})
            self._span("prefill", self._below, began, now, _attributes(step))
            self._decode = self._tracer.start_span("decode", self._below, start_time=now)
        elif self._num_steps < MAX_STEP_SPANS and self._decode is not None:
            below = set_span_in_context(self._decode)
            self._span("step", below, began, now, _attributes(step))
        self._last = now
        self._num_steps += 1
        self._num_tokens += len(output.token_ids)
        self._num_accepted += output.num_accepted_tokens
        if output.finish_reason is not None:
            self._finish_reason = output.finish_reason.value

    def end(self) -> None:
        if self._decode is not None:
            self._decode.end(self._last)
        about: dict[str, str | int] = {
            "diffuspec.num_steps": self._num_steps,
            "diffuspec.num_output_tokens": self._num_tokens,
            "diffuspec.num_accepted_tokens": self._num_accepted,
            "diffuspec.finish_reason": self._finish_reason,
        }
        self._request.set_attributes(about)
        self._request.end()

    def _span(
        self, name: str, below: Context, start: int, end: int, about: Mapping[str, str | float]
    ) -> None:
        span = self._tracer.start_span(name, below, attributes=about, start_time=start)
        span.end(end)


def _attributes(step: StepStats) -> dict[str, str | float]:
    about: dict[str, str | float | None] = {
        "draft_seconds": step.draft_seconds,
        "search_seconds": step.search_seconds,
        "verify_seconds": step.verify_seconds,
        "transport_seconds": step.transport_seconds,
        "num_draft_tokens": step.num_draft_tokens,
        "num_tree_nodes": step.num_tree_nodes,
        "num_accepted_tokens": step.num_accepted_tokens,
        "num_committed_tokens": step.num_committed_tokens,
        "num_wasted_draft_tokens": step.num_wasted_draft_tokens,
        "pre_draft": step.pre_draft,
        "fallback": step.fallback,
    }
    return {f"diffuspec.{name}": value for name, value in about.items() if value is not None}


def _parent() -> Context:
    return _W3C.extract({"traceparent": context.traceparent.get()})


def _traceparent(span: Span) -> str:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span))
    return carrier.get("traceparent", "")
