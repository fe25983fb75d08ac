"""The bounds that a run must keep."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.soak import sample
from benchmarks.soak.client import End, Outcome
from benchmarks.soak.mixture import Kind
from benchmarks.soak.run import Run
from benchmarks.soak.sample import Sample

MAX_TIMES_MEDIAN = 10
MAX_GROWTH_MIB = 1.0  # per 1,000 requests
MAX_MORE_DESCRIPTORS = 8  # in a process
MIN_VERIFICATIONS = 25_000
FULL_SECONDS = 15 * 60.0
# Below these a run says nothing about memory and descriptors: caches and pools still fill.
WARM_UP_SHARE, MIN_WARM_UP, MIN_JUDGED = 0.25, 1000, 1000
_MIN_MEDIAN_SECONDS = 0.5  # refusals of milliseconds wait for others' steps on a busy processor
_UNTIMED = (Kind.SLOW, Kind.ABORT)
_TOO_FEW = "too few requests"
_MAX_REASONS = 3
_MAX_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Check:
    """One property of a run."""

    name: str
    measured: str
    reasons: tuple[str, ...] = ()  # why the check failed; (): it passed

    @property
    def has_passed(self) -> bool:
        return not self.reasons


def checks(run: Run) -> list[Check]:
    """Return all checks of a run, in the order of the report."""
    return [
        _answers(run),
        _service(run),
        _times(run),
        _memory(run),
        _descriptors(run),
        _gauges(run),
        _slots(run),
        _verifications(run),
    ]


def _answers(run: Run) -> Check:
    num_answered = sum(outcome.end is End.ANSWERED for outcome in run.outcomes)
    failures = run.failures
    shown = [f"{failure.end}: {failure.name}: {failure.reason}" for failure in failures]
    shown = [line[:_MAX_CHARACTERS] for line in shown]
    if len(shown) > _MAX_REASONS:
        shown[_MAX_REASONS:] = [f"and {len(shown) - _MAX_REASONS} more"]
    measured = f"{num_answered:,} right, {len(failures)} failed"
    return Check("answers", measured, tuple(shown))


def _service(run: Run) -> Check:
    return Check("service", "ended well" if not run.problems else "failed", tuple(run.problems))


def undisturbed(run: Run) -> dict[Kind, list[Outcome]]:
    """Return the requests by kind that came to their end without a kill on the way."""
    ended = (End.ANSWERED, End.LEFT, End.REFUSED)
    by_kind: dict[Kind, list[Outcome]] = {kind: [] for kind in Kind}
    for outcome in run.outcomes:
        if outcome.end in ended and not run.kills.disturbed(outcome.began, outcome.ended):
            by_kind[outcome.kind].append(outcome)
    return by_kind


def _times(run: Run) -> Check:
    def times_median(outcomes: Sequence[Outcome]) -> tuple[float, Outcome]:
        median = statistics.median(outcome.seconds for outcome in outcomes)
        longest = max(outcomes, key=lambda outcome: outcome.seconds)
        return longest.seconds / max(median, _MIN_MEDIAN_SECONDS), longest

    timed = [
        times_median(outcomes)
        for kind, outcomes in undisturbed(run).items()
        if outcomes and kind not in _UNTIMED
    ]
    reasons = tuple(
        f"{longest.name} took {longest.seconds:.2f} s, {times:.0f} times the median of its kind"
        for times, longest in timed
        if times > MAX_TIMES_MEDIAN
    )
    worst = max((times for times, _ in timed), default=0.0)
    return Check("longest request / median", f"{worst:.1f}", reasons)


def _judged(run: Run) -> list[Sample] | None:
    """Return the samples after the warm-up; None: too few requests came after it."""
    total = len(run.outcomes)
    warm_up = max(WARM_UP_SHARE * total, MIN_WARM_UP)
    if total - warm_up < MIN_JUDGED:
        return None
    return [point for point in run.samples if point.num_requests >= warm_up]


def _memory(run: Run) -> Check:
    name = "memory, MiB per 1,000 requests"
    if (judged := _judged(run)) is None:
        return Check(name, _TOO_FEW)
    growth = sample.growth_mib(judged)
    reason = f"grows by {growth:.2f} MiB per 1,000 requests, at most {MAX_GROWTH_MIB:g} is allowed"
    return Check(name, f"{growth:.2f}", (reason,) if growth > MAX_GROWTH_MIB else ())


def _descriptors(run: Run) -> Check:
    if (judged := _judged(run)) is None:
        return Check("descriptors", _TOO_FEW)
    more = sample.more_descriptors(judged)
    reasons = tuple(
        f"{process} has {number:g} more at the end than after the warm-up"
        for process, number in more.items()
        if number > MAX_MORE_DESCRIPTORS
    )
    return Check("descriptors", f"{max(more.values(), default=0):+g}", reasons)


def _gauges(run: Run) -> Check:
    reasons = tuple(f"{name} is {value:g} at rest" for name, value in run.left_over.items())
    return Check("gauges", "left over" if reasons else "at rest", reasons)


def _slots(run: Run) -> Check:
    return Check("slots", "lost", (run.lost_slots,)) if run.lost_slots else Check("slots", "all")


def _verifications(run: Run) -> Check:
    number = run.verifications.num_calls
    is_short = run.plan.seconds < FULL_SECONDS or number >= MIN_VERIFICATIONS
    reason = f"{number:,.0f} verifications, at least {MIN_VERIFICATIONS:,} are needed"
    return Check("verifications, at least", f"{number:,.0f}", () if is_short else (reason,))


def failed(checked: Sequence[Check]) -> Iterator[Check]:
    return (check for check in checked if not check.has_passed)
