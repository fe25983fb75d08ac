"""Lifecycle: a request's state, since when, and what it waits for; and the times of its step."""

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
    seconds: dict[str, float] = field(default_factory=dict)  # by earlier state

    def enter(self, state: State, waits_for: str) -> None:
        now = time.monotonic()
        self.seconds[self.state] = self.seconds.get(self.state, 0.0) + now - self.since
        self.state, self.waits_for, self.since = state, waits_for, now


@dataclass(slots=True)
class StepTimes:
    """The coming step so far. Points in time are time.monotonic()."""

    started_at: float = 0.0  # the previous verdict, or the admission
    verify_busy_seconds: float = 0.0  # of the verifier, in total, when the step began
    draft_busy_seconds: float = 0.0  # of the drafters, in total, when the step began
    ready_at: float = 0.0  # the draft arrived, or the decision to go without one
    drafting_seconds: float = 0.0  # spent waiting for the drafter, transport included
    prefill_seconds: float = 0.0  # of the verifier, on prompt chunks ahead of the step
    prefill_transport_seconds: float = 0.0  # of these chunks, both ways
    yielded_seconds: float = 0.0  # spent waiting for the first tokens of others
