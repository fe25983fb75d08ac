"""A simulated machine: how many seconds the roles' calls take on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class CallSize(NamedTuple):
    """The work of a verification or of a draft call."""

    num_requests: int
    num_rows: int  # roots and nodes of a verification, or positions of drafts
    num_unread: int = 0  # prefix tokens that are read before
    num_context: int = 0  # cached tokens that the rows see, over all requests

    @property
    def num_all(self) -> int:
        """Rows and tokens that are read."""
        return self.num_rows + self.num_unread


class Machine(ABC):
    """A kind of machine: how long verifications and draft calls take, and how they interfere."""

    name: str
    # seconds added to a call per second that another one runs beside it
    interference: float = 0.0
    network_seconds: float = 0.0  # one-way network time to a drafter
    num_drafters: int = 1
    overlap: bool = False  # the key of CoordinatorConfig
    # committed tokens after which a drafter reads a prefix again; None: never
    refresh_every: int | None = None
    refresh_tokens: int | None = None  # most tokens at its end that it then reads; None: all

    def slowness(self, now: float) -> float:
        """Factor by which calls that begin now are slower because other programs are running."""
        return 1.0

    @abstractmethod
    def verify_seconds(self, size: CallSize) -> float:
        """Seconds of a verification alone."""

    @abstractmethod
    def draft_seconds(self, size: CallSize) -> float:
        """Seconds of a draft call alone."""
