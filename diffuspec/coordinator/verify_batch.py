"""One call of the verifier: the requests in it, and the verdict of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from diffuspec.coordinator.request import Request
from diffuspec.core.types import Verdict, VerifyRequest


class VerifyBatch(NamedTuple):
    """Requests to be verified together; one with a chunk reads that piece of its prefix first."""

    requests: Sequence[Request]
    chunks: Sequence[VerifyRequest | None]

    @property
    def decoding(self) -> list[Request]:
        """The requests whose draft is verified now."""
        return [
            request
            for request, chunk in zip(self.requests, self.chunks, strict=True)
            if chunk is None
        ]

    @property
    def num_rows(self) -> int:
        """Rows fed to the target: each request's draft and the token before it."""
        return sum([1 + request.draft.tree.num_nodes for request in self.requests])

    def halves(self) -> tuple[VerifyBatch, VerifyBatch]:
        half = len(self.requests) // 2
        return (
            VerifyBatch(self.requests[:half], self.chunks[:half]),
            VerifyBatch(self.requests[half:], self.chunks[half:]),
        )


class Verified(NamedTuple):
    """A verdict, and the call that it came in."""

    verdict: Verdict
    started_at: float  # of the call, by time.monotonic()
    seconds: float  # of the call
    alone_seconds: float  # that it would have taken with no drafting at the same time
    is_plain: bool  # in this call and the one before no request had a draft, or was drafted for


StepResult: TypeAlias = Verified | Exception
