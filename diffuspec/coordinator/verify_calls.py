"""The way to the verifier: what calls take, and how long to wait when it is gone."""

from __future__ import annotations

import time
from collections.abc import Sequence as Batch
from dataclasses import dataclass

from diffuspec.control.costs import BusyTime
from diffuspec.core.errors import VerifierError
from diffuspec.core.interfaces import Verifier
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.telemetry.trace import Tracer

_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class VerdictBatch:
    """What a call came to. The seconds are those of the whole call."""

    verdicts: list[Verdict]
    started_at: float
    seconds: float


class VerifyCalls:
    """Asks the verifier."""

    def __init__(self, verifier: Verifier, tracer: Tracer | None) -> None:
        self.busy = BusyTime()
        self._verifier = verifier
        self._tracer = tracer
        self._num_failures = 0

    async def ask(self, requests: Batch[VerifyRequest]) -> VerdictBatch:
        """Verify a batch. Raises whatever a verifier does, and VerifierError when it miscounts."""
        started = time.monotonic()
        self._num_failures += 1
        self.busy.begin(started)
        try:
            verdicts = await self._verifier.verify(requests)
        except Exception:
            self._trace_failure(started)
            raise
        finally:
            ended = time.monotonic()
            self.busy.end(ended)
        self._num_failures = 0
        if len(verdicts) != len(requests):
            raise VerifierError(f"{len(verdicts)} verdicts for {len(requests)} requests")
        batch = VerdictBatch(verdicts, started, ended - started)
        if self._tracer is not None:
            self._trace(self._tracer, batch, requests)
        return batch

    @property
    def pause_seconds(self) -> float:
        """How long to leave the verifier alone, by how often it failed in a row."""
        doublings = min(max(self._num_failures - 1, 0), 16)
        return min(_FIRST_PAUSE_SECONDS * 2.0**doublings, _MAX_PAUSE_SECONDS)

    def _trace(self, tracer: Tracer, batch: VerdictBatch, requests: Batch[VerifyRequest]) -> None:
        """The call as it went: out, the target, back. Both ways take half each."""
        way = max(verdict.transport_seconds for verdict in batch.verdicts) / 2
        started, ended = batch.started_at, batch.started_at + batch.seconds
        size = {
            "num_requests": len(requests),
            "num_nodes": sum(request.tree.num_nodes for request in requests),
        }
        tracer.span("transport to verifier", "out", started, started + way)
        tracer.span("verifier", "verify", started + way, ended - way, "good", size)
        tracer.span("transport to verifier", "back", ended - way, ended)

    def _trace_failure(self, started: float) -> None:
        if self._tracer is not None:
            self._tracer.span("verifier", "failed", started, time.monotonic(), "terrible")
