"""What the tasks of one request know of it: they inherit it from the task that sets it."""

from __future__ import annotations

from contextvars import ContextVar

# The id that its client knows it by; "": none.
request_id: ContextVar[str] = ContextVar("request_id", default="")

# W3C's traceparent of the span around it: 00-TRACE_ID-SPAN_ID-FLAGS; "": it is not traced.
traceparent: ContextVar[str] = ContextVar("traceparent", default="")
