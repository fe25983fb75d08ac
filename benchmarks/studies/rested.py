"""Roles in this process that sleep while the other one works, as roles in separate processes do.

No messages are sent. The extra time that a rested role takes is the cost of a processor that has
slept and of caches filled by others. On virtual machines this is much of the cost of separate
processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from diffuspec.core.interfaces import Drafter, TargetInfo, Verifier
from diffuspec.core.types import Draft, DraftRequest, Verdict, VerifyRequest
from diffuspec.engine.engine import Engine


def rested(engine: Engine) -> Engine:
    """Return an engine over the same models, whose steps report sleep as transport_seconds.

    The models still belong to the given engine.
    """
    assert engine.drafter is not None, "there is one role only"
    drafter = RestedDrafter(engine.drafter)
    verifier = RestedVerifier(engine.verifier, drafter)
    drafter.verifier = verifier
    return Engine(engine.config, verifier, drafter, engine.tokenizer)


class RestedDrafter:
    """A `Drafter` that first sleeps as long as the verifier's last call took."""

    verifier: RestedVerifier

    def __init__(self, drafter: Drafter) -> None:
        self.seconds = 0.0  # time of the last draft
        self._drafter = drafter

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See `Drafter.draft`."""
        slept = await _sleep(self.verifier.seconds)
        started = time.perf_counter()
        drafts = await self._drafter.draft(requests)
        self.seconds = time.perf_counter() - started
        return [replace(draft, transport_seconds=slept) for draft in drafts]

    async def release(self, request_id: str) -> None:
        await self._drafter.release(request_id)


class RestedVerifier:
    """A `Verifier` that first sleeps as long as the drafter's last call took."""

    def __init__(self, verifier: Verifier, drafter: RestedDrafter) -> None:
        self.seconds = 0.0  # time of the last verification
        self._verifier = verifier
        self._drafter = drafter

    @property
    def info(self) -> TargetInfo:
        return self._verifier.info

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        """See `Verifier.verify`."""
        slept = await _sleep(self._drafter.seconds)
        started = time.perf_counter()
        verdicts = await self._verifier.verify(requests)
        self.seconds = time.perf_counter() - started
        return [replace(verdict, transport_seconds=slept) for verdict in verdicts]

    async def release(self, request_id: str) -> None:
        await self._verifier.release(request_id)


async def _sleep(seconds: float) -> float:
    """Sleep, and return the seconds that it actually took."""
    started = time.perf_counter()
    await asyncio.sleep(seconds)
    return time.perf_counter() - started
