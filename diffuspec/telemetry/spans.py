"""The spans in a coordinator's trace for each call of a role."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

from diffuspec.core.types import Draft, Verdict, VerifyRequest
from diffuspec.telemetry.trace import Tracer


def trace_drafts(
    tracer: Tracer | None, name: str, drafts: Sequence[Draft], started: float, num_ahead: int
) -> None:
    """Trace a drafter's call that ends now: out, model, search, back. Transport is split evenly.

    The last `num_ahead` of the drafts are pre-drafts.
    """
    if tracer is None:
        return
    way = max(draft.transport_seconds for draft in drafts) / 2
    ended = time.monotonic()
    search = max(draft.search_seconds for draft in drafts)
    searched = max(ended - way - search, started)
    kind = "draft" if num_ahead < len(drafts) else "pre-draft"
    colour: Literal["yellow", "good"] = "good" if kind == "draft" else "yellow"
    size = {"num_requests": len(drafts), "num_ahead": num_ahead}
    transport, scorer = f"transport to {name}", f"scorer{name.removeprefix('drafter')}"
    tracer.span(transport, "out", started, started + way)
    tracer.span(name, kind, started + way, searched, colour, size)
    tracer.span(scorer, "search", searched, ended - way, None, size)
    tracer.span(transport, "back", ended - way, ended)


def trace_verdicts(
    tracer: Tracer | None,
    requests: Sequence[VerifyRequest],
    verdicts: Sequence[Verdict],
    started: float,
) -> None:
    """Trace a verifier's call that ends now: out, target, back. Transport is split evenly."""
    if tracer is None:
        return
    way = max(verdict.transport_seconds for verdict in verdicts) / 2
    ended = time.monotonic()
    size = {
        "num_requests": len(requests),
        "num_nodes": sum(request.tree.num_nodes for request in requests),
    }
    tracer.span("transport to verifier", "out", started, started + way)
    tracer.span("verifier", "verify", started + way, ended - way, "good", size)
    tracer.span("transport to verifier", "back", ended - way, ended)


def trace_check(tracer: Tracer | None, name: str, started: float) -> None:
    """Trace the health check of a drafter that ends now."""
    if tracer is not None:
        tracer.span(name, "health check", started, time.monotonic(), "grey")


def trace_failure(tracer: Tracer | None, name: str, started: float) -> None:
    """Trace a worker's call that fails now."""
    if tracer is not None:
        tracer.span(name, "failed", started, time.monotonic(), "terrible")
