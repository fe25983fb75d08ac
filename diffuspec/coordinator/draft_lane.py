"""DraftLane: one drafter of the pool, the requests that wait for it, and whether it is well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from diffuspec.coordinator.draft_batch import DraftBatch
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.request_queue import RequestQueue
from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.types import Draft, DraftRequest

_FIRST_PAUSE_SECONDS = 0.5  # after a failure, before a trial
_MAX_PAUSE_SECONDS = 30.0


class Breaker:
    """A circuit breaker: keeps a failing drafter from being asked at every step.

    While it is closed, every request may use the drafter. While it is open, none may; after a pause
    a single trial is made, and a success closes it again.
    """

    def __init__(self) -> None:
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._open_until = 0.0
        self._is_on_trial = False

    @property
    def is_closed(self) -> bool:
        return not self._backoff.num_failures

    def take_trial(self) -> bool:
        """Return whether a trial is due; it must end in succeeded, failed or give_up_trial."""
        if self.is_closed or self._is_on_trial or time.monotonic() < self._open_until:
            return False
        self._is_on_trial = True
        return True

    def give_up_trial(self) -> None:
        """Let another trial be made."""
        self._is_on_trial = False

    def succeeded(self) -> None:
        self._backoff.succeeded()
        self._is_on_trial = False

    def failed(self) -> None:
        self._open_until = time.monotonic() + self._backoff.failed()
        self._is_on_trial = False


@dataclass(frozen=True, slots=True)
class Trial:
    """A draft request copied from a request, to test whether a drafter is well again."""

    request: Request
    draft_request: DraftRequest


class _Call:
    """A context that raises TimeoutError once ended; cheaper to enter than `asyncio.timeout`."""

    def __init__(self, late_at: float, wanted_by: set[Request]) -> None:
        self.late_at = late_at  # by time.monotonic()
        self.wanted_by = wanted_by
        self._is_ended = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._num_cancels = task, task.cancelling()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self._is_ended:
            return
        is_ours = self._task.uncancel() <= self._num_cancels
        if is_ours and kind is asyncio.CancelledError:
            raise TimeoutError

    def end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._task.cancel()


class DraftLane:
    """A drafter with a queue of its own: a lane never waits for another."""

    def __init__(self, drafter: Drafter, name: str, chosen_by: str = "") -> None:
        self.chosen_by = chosen_by  # the name that its requests choose
        self.drafter = drafter
        self.name = name
        self.turn = f"its turn at {name}"  # `waits_for` of a queued request
        self.is_gone = False
        self.breaker = Breaker()
        self.pre_draft_breaker = Breaker()  # large batches may fail where small ones do not
        self.has_work = asyncio.Event()  # a draft, a pre-draft, a trial, or the lane's end
        self.queue = RequestQueue(self.has_work)
        self.under_way: DraftBatch | None = None  # None: no call, or a trial
        self.trial: Trial | None = None  # to be made next
        self.held_request_ids: set[str] = set()  # requests whose prefix the drafter may hold
        self._call: _Call | None = None
        self._timer: asyncio.TimerHandle | None = None  # kept from call to call: few are late

    @property
    def is_available(self) -> bool:
        """Whether requests may be placed here."""
        return self.breaker.is_closed and not self.is_gone

    @property
    def drafting(self) -> Sequence[Request]:
        """The requests whose drafts are being made, pre-drafts left out."""
        return self.under_way.requests if self.under_way is not None else ()

    @property
    def requests(self) -> list[Request]:
        """The requests that are queued, and those whose drafts are being made."""
        return [*self.queue, *self.drafting]

    @property
    def load(self) -> tuple[int, int]:
        """Draft tokens queued or in a call, then requests held: the least load is chosen first."""
        num_tokens = sum(request.num_draft_tokens for request in self.requests)
        return num_tokens, len(self.held_request_ids)

    async def draft(
        self,
        requests: Sequence[DraftRequest],
        wanted_by: set[Request],
        max_seconds: float,
    ) -> list[Draft] | None:
        """Ask the drafter for one draft per request; None once no request wants them any more.

        Raises whatever the drafter raises, and DrafterError when it is late or miscounts.
        """
        self._call = call = _Call(time.monotonic() + max_seconds, wanted_by)
        try:
            with call:
                if self._timer is None:
                    self._end_if_late()
                drafts = await self.drafter.draft(requests)
        except TimeoutError as error:
            if not call.wanted_by:
                return None
            raise DrafterError(f"no draft within {max_seconds} seconds") from error
        finally:
            self._call = None
        if len(drafts) != len(requests):
            raise DrafterError(f"{len(drafts)} drafts for {len(requests)} requests")
        return drafts

    def drop(self, request: Request) -> None:
        """Draft no more for a request; a call that no other request wants ends at once."""
        self.queue.remove(request)
        call = self._call
        if call is not None:
            call.wanted_by.discard(request)
            if not call.wanted_by:
                call.end()

    def _end_if_late(self) -> None:
        """End the call under way if it is late; if not, check again when it would be."""
        call, self._timer = self._call, None
        if call is None:
            return
        seconds_left = call.late_at - time.monotonic()
        if seconds_left > 0:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds_left, self._end_if_late)
        else:
            call.end()
