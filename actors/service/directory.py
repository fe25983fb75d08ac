"""The directory: the running pipelines, the addresses of their coordinators, and their tokens.

Pipeline replicas announce themselves repeatedly; one that stops doing so is dropped. Nothing is
kept on disk: after a restart, the directory knows all pipelines again once they have made their
next announcements. The target's files are asked for when an ingress needs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from diffuspec.core.interfaces import TargetInfo
from diffuspec.rpc.security import Security

ANNOUNCE_SECONDS = 0.5  # pause between two announcements of a pipeline
EXPIRY_SECONDS = 5.0  # time that a pipeline stays listed after its last announcement


@dataclass(frozen=True, slots=True)
class Member:
    """A pipeline as announced by its replica."""

    name: str  # name of the replica; names are never reused
    address: str  # the coordinator's address; "" while there is none
    security: Security
    info: TargetInfo | None  # None while there is no coordinator
    accepts_requests: bool = True  # False: it only finishes the requests that it has
    num_requests: int = 0  # running and waiting
    reason: str = ""  # why there is no coordinator


class Directory:
    """The directory's state. A plain class, which a Serve deployment runs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # each with the time of its announcement
        self._members: dict[str, tuple[Member, float]] = {}
        self._metrics: dict[str, str] = {}
        self._files: Mapping[str, bytes] = {}
        self._wants_files = False

    async def announce(self, member: Member) -> bool:
        """Add a pipeline, or replace its entry; return whether its target's files are wanted."""
        self._members[member.name] = member, self._clock()
        return self._wants_files

    async def announce_files(self, files: Mapping[str, bytes]) -> None:
        """Store the target's files, see `read_files`."""
        self._files, self._wants_files = files, False

    async def announce_metrics(self, name: str, text: str) -> None:
        """Store the latest Prometheus series of a pipeline."""
        self._metrics[name] = text

    async def leave(self, name: str) -> None:
        """Remove a pipeline."""
        self._members.pop(name, None)
        self._metrics.pop(name, None)

    async def files(self) -> Mapping[str, bytes]:
        """Return the target's files; none until a pipeline has announced them after this call."""
        self._wants_files = not self._files
        return self._files

    async def pipelines(self) -> tuple[Member, ...]:
        """Return the pipelines, sorted by name."""
        self._expire()
        return tuple(member for _, (member, _) in sorted(self._members.items()))

    async def metrics(self) -> dict[str, str]:
        """Return the latest Prometheus series of each pipeline, by name."""
        self._expire()
        return {name: text for name, text in self._metrics.items() if name in self._members}

    def _expire(self) -> None:
        now = self._clock()
        for name, (_, announced_at) in list(self._members.items()):
            if now - announced_at > EXPIRY_SECONDS:
                del self._members[name]
        for name in self._metrics.keys() - self._members.keys():
            del self._metrics[name]
