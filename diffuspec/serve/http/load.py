"""The number of requests in progress in one application."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Load:
    """Counts the requests in progress that have a body."""

    def __init__(self) -> None:
        self.num_requests = 0

    @contextlib.contextmanager
    def one_request(self) -> Iterator[None]:
        """Count a request while the context is open."""
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1
