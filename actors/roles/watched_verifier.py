"""A watched verifier: the age of its running steps, and whether steps can still succeed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence

from actors.roles import self_test
from diffuspec.core.errors import VerifierError, VerifierUnavailableError
from diffuspec.core.interfaces import TargetInfo, Verifier
from diffuspec.core.types import Verdict, VerifyRequest


class WatchedVerifier:
    """A `Verifier` that records the age of its steps, and detects when none can succeed.

    After a failed step it runs the self-test. If that fails too, this call and every later one
    raises VerifierUnavailableError: the verifier has to be replaced.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.num_steps = 0
        self._verifier = verifier
        self._numbers = itertools.count()
        self._started: dict[int, float] = {}
        self.failure = ""  # reason why no step can succeed; "" if steps can
        self._is_broken = asyncio.Event()

    @property
    def info(self) -> TargetInfo:
        return self._verifier.info

    @property
    def oldest_seconds(self) -> float:
        """Age of the oldest running step; 0 if none runs."""
        started = list(self._started.values())
        return time.monotonic() - min(started) if started else 0.0

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        """See `Verifier.verify`. A plain VerifierError means that the requests are invalid."""
        if self.failure:
            raise VerifierUnavailableError(self.failure)
        number = next(self._numbers)
        self._started[number] = time.monotonic()
        try:
            verdicts = await self._verifier.verify(requests)
        except VerifierUnavailableError as error:
            self._give_up(str(error))
            raise
        except VerifierError as error:
            await self._test_after(error)
            raise
        finally:
            del self._started[number]
        self.num_steps += 1
        return verdicts

    async def release(self, request_id: str) -> None:
        await self._verifier.release(request_id)

    async def watch(self) -> None:
        """Wait until no step can succeed; raise VerifierUnavailableError then."""
        await self._is_broken.wait()
        raise VerifierUnavailableError(self.failure)

    async def test(self) -> None:
        """Run the self-test. Raises what verify() raises."""
        await _run_self_test(self)

    async def _test_after(self, error: VerifierError) -> None:
        """Run the self-test after a failed step. Raises VerifierUnavailableError if it fails."""
        try:
            await _run_self_test(self._verifier)
        except VerifierError as test_error:
            reason = f"a step failed with: {error}; and a self-test with: {test_error}"
            self._give_up(reason)
            raise VerifierUnavailableError(reason) from error

    def _give_up(self, reason: str) -> None:
        self.failure = self.failure or reason
        self._is_broken.set()


async def _run_self_test(verifier: Verifier) -> None:
    await verifier.verify([self_test.verify_request(verifier.info)])
    await verifier.release(self_test.REQUEST_ID)
