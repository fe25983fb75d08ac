"""The id, key and trace of the request that a task serves; inherited by tasks that it starts."""

from __future__ import annotations

import re
from contextvars import ContextVar

# The request's id for its client; "": none.
request_id: ContextVar[str] = ContextVar("request_id", default="")

# The name of the API key with which the request was sent; "": none.
key_name: ContextVar[str] = ContextVar("key_name", default="")

# The W3C traceparent of the enclosing span: 00-TRACE_ID-SPAN_ID-FLAGS; "": not traced.
traceparent: ContextVar[str] = ContextVar("traceparent", default="")

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def follow_trace(given: str) -> None:
    """Join the trace of a traceparent; if that is invalid, the request is not traced."""
    traceparent.set(given if _TRACEPARENT.fullmatch(given) else "")
