"""One call of the verifier: the requests in it, and the verdict of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from diffuspec.coordinator.request import Request
from diffuspec.core.types import Verdict, VerifyRequest


class VerifyBatch(NamedTuple):
    """Requests to be verified together, and what the verifier is asked for each."""

    requests: Sequence[Request]
    asked: Sequence[VerifyRequest]

    @property
    def decoding(self) -> list[Request]:
        """The requests whose draft is verified now, whatever of their prefix is cached."""
        return [
            request
            for request, asked in zip(self.requests, self.asked, strict=True)
            if not asked.is_of_prompt
            and request.reading.num_unread <= (asked.max_read_tokens or math.inf)
        ]

    @property
    def num_rows(self) -> int:
        """Rows fed to the target: each request's draft and the token before it."""
        return sum([1 + request.draft.tree.num_nodes for request in self.requests])

    def halves(self) -> tuple[VerifyBatch, VerifyBatch]:
        half = len(self.requests) // 2
        return (
            VerifyBatch(self.requests[:half], self.asked[:half]),
            VerifyBatch(self.requests[half:], self.asked[half:]),
        )


class Verified(NamedTuple):
    """A verdict, and the call that it came in."""

    verdict: Verdict
    started_at: float  # of the call, by time.monotonic()
    seconds: float  # of the call
    alone_seconds: float  # that it would have taken with no drafting at the same time
    is_plain: bool  # no drafts in this call or the one before, and none made beside them


StepResult: TypeAlias = Verified | Exception
