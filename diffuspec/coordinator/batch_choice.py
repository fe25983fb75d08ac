"""BatchChoice: which requests are verified now, so that first tokens come soon.

A request's first token comes with the verification that reads the rest of its prompt, and takes as
long as all that is read and verified in it. So shorter prompts are read before much longer ones,
and beside them only as many rows of drafts are verified as `StepCosts.rows_beside` allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.request_queue import RequestQueue

_MAX_WAITS = 3  # of a prompt, for shorter ones to be read first
_NUM_ROWS_BESIDE = 32  # of drafts, besides as many as are read of prompts, at most


class BatchChoice:
    """Chooses one batch after the other; what is not chosen goes back into the queue."""

    def __init__(self, queue: RequestQueue, costs: StepCosts, max_chunk_tokens: int) -> None:
        """max_chunk_tokens: of one prompt, read in one verification."""
        self.put_off: list[Request] = []  # with their drafts, out of the last batch
        self._queue = queue
        self._costs = costs
        self._max_chunk_tokens = max_chunk_tokens
        self._waits = Counter[Request]()  # for shorter prompts, of those that wait now
        self._has_let_in = True  # drafts, into the last batch, if there were any

    def choose(self, ready: Sequence[Request]) -> Sequence[Request]:
        """Return the requests to verify now; queue the others again."""
        reading = [request for request in ready if request.reading.is_long]
        if not reading:
            self.put_off, self._has_let_in = [], True
            return ready
        chosen = self._choose_prompts(reading)
        num_reading, self.put_off = len(chosen), []
        num_read = sum(map(self.num_to_read, chosen))
        room = num_read + _NUM_ROWS_BESIDE
        # All drafts may be put off for first tokens, but not twice in a row.
        may_put_off = self._has_let_in and all(map(self.ends_reading, chosen))
        if may_put_off:
            room = self._costs.rows_beside(num_read, room)
        for request in ready:
            if request.reading.is_long:
                continue
            num_nodes = request.draft.tree.num_nodes
            room -= 1 + num_nodes
            is_due = len(chosen) == num_reading and not may_put_off
            if room >= 0 or is_due or not num_nodes:
                chosen.append(request)
            else:
                self._queue.put(request)
                self.put_off.append(request)
        self._has_let_in = num_reading < len(chosen) or not self.put_off
        return chosen

    def ends_reading(self, request: Request) -> bool:
        """Whether the next verification gives a request its first token."""
        is_ready = request.state == "verifying" and request.reading.is_long
        return is_ready and request.reading.num_unread <= self._max_chunk_tokens

    def _choose_prompts(self, reading: Sequence[Request]) -> list[Request]:
        """Return whose prompts are read now; queue much longer ones again, _MAX_WAITS times."""
        waits = self._waits
        num_due = sum(waits[request] == _MAX_WAITS for request in reading)
        prompts = sorted(reading, key=lambda one: (waits[one] < _MAX_WAITS, self.num_to_read(one)))
        count = self._costs.num_read_first([self.num_to_read(request) for request in prompts])
        waiting = prompts[max(count, num_due) :]
        self._waits = Counter({request: waits[request] + 1 for request in waiting})
        for request in waiting:
            self._queue.put(request)
        return [request for request in reading if request not in self._waits]

    def num_to_read(self, request: Request) -> int:
        """Return the tokens of a prompt that the next verification reads."""
        return min(request.reading.num_unread, self._max_chunk_tokens)
