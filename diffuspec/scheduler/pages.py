"""What a coordinator knows of the pages of the target's cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffuspec.core.interfaces import Verifier
from diffuspec.core.types import Verdict


class Pages:
    """Counts free pages, and what it costs to have too few.

    Each batch of verdicts says how many pages are free. Between two batches, requests that are
    released are assumed to have shared none of theirs: if that is too many, the verifier holds what
    does not fit, and says so with its verdicts.
    """

    def __init__(self, verifier: Verifier) -> None:
        self.num_preemptions = 0  # times that a request lost its pages to older ones
        self.num_reread_tokens = 0  # tokens that were read again after their pages had been lost
        self.num_waiting = 0  # requests that wait for pages
        self.num_shared = 0  # pages that several requests used after the last verification
        self._verifier = verifier
        self._num_free = self.num_all
        self._num_released = 0  # since the verification in flight began

    @property
    def num_all(self) -> float:
        """Number of pages; math.inf if the verifier has no limit."""
        number = self._verifier.info.num_pages
        return math.inf if number is None else number

    @property
    def num_free(self) -> float:
        return min(self._num_free, self.num_all)

    @property
    def num_used(self) -> float:
        """Number of pages in use; 0 if the verifier has no limit."""
        return 0.0 if self.num_all == math.inf else self.num_all - self.num_free

    def begin_verification(self) -> None:
        self._num_released = 0

    def release(self, num_pages: int) -> None:
        """Count the pages of a request that the verifier has released."""
        self._num_released += num_pages
        self._num_free += num_pages

    def on_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Take over what the verifier reports; requests may have been released meanwhile."""
        use = verdicts[0].pages
        if use is not None:
            self._num_free = use.num_free + self._num_released
            self.num_shared = use.num_shared

    def reset(self) -> None:
        """Assume that all pages are free: the verifier may be a new one."""
        self._num_free, self.num_shared = self.num_all, 0
