"""Lifecycle: a request's state, since when, and what it waits for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

State: TypeAlias = Literal["waiting", "drafting", "verifying", "finished"]


@dataclass(slots=True)
class Lifecycle:
    """Starts in the waiting state. Times are time.monotonic()."""

    state: State = "waiting"
    waits_for: str = "a slot"
    since: float = field(default_factory=lambda: time.monotonic())
    seconds: dict[str, float] = field(default_factory=dict)  # spent in earlier states

    def enter(self, state: State, waits_for: str) -> None:
        now = time.monotonic()
        self.seconds[self.state] = self.seconds.get(self.state, 0.0) + now - self.since
        self.state, self.waits_for, self.since = state, waits_for, now
