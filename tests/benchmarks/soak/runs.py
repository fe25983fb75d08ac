"""A run as it would be after a service without faults, to be spoilt by tests."""

from __future__ import annotations

from typing import Any

from benchmarks.service import ServiceKind
from benchmarks.soak.client import End, Outcome
from benchmarks.soak.mixture import Kind
from benchmarks.soak.run import Plan, Run
from benchmarks.soak.series import Verifications


def outcome(kind: Kind = Kind.STREAM, **changes: Any) -> Outcome:
    given: dict[str, Any] = {"name": f"{kind} 0", "began": 0.0, "ended": 0.5, "end": End.ANSWERED}
    return Outcome(kind=kind, **{**given, **changes})


def good_run(seconds: float = 900.0, num_requests: int = 4000, **changes: Any) -> Run:
    plan = Plan(changes.pop("service", ServiceKind.SERVE), 8, seconds, seed=0)
    run = Run(plan, verifications=Verifications(30_000), seconds=seconds, **changes)
    for _ in range(num_requests):
        run.record(outcome())
    return run
