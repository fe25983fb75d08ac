"""The bounds that a run must keep."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.abuse.attack import Attempt
from benchmarks.abuse.bystanders import Request
from benchmarks.abuse.run import Run

MAX_MORE_SECONDS = {
    Request.PLAIN: 1.0,
    Request.COUNT: 1.0,
    Request.FORM: 2.0,
}  # longer waits than without attacks
MAX_MORE_MIB = 64.0  # after the second pass than after the first; allocators keep some
_MAX_CHARACTERS = 300
_MAX_FAILURES = 3  # failed requests of bystanders that are listed for an attempt


def failures(run: Run, max_end_seconds: float) -> list[str]:
    """Return a line for each reason for which a run failed."""
    lines = [
        *(f"without attacks: {failure}" for failure in run.idle.failures),
        *(line for attempt in run.attempts for line in _of_attempt(run, attempt)),
        *_of_memory(run),
        *_of_end(run, max_end_seconds),
    ]
    return [line[:_MAX_CHARACTERS] for line in lines]


def more_seconds(run: Run, attempt: Attempt, request: Request) -> float | None:
    """Return the seconds that others waited longer than without an attack; None: no answer."""
    if request not in attempt.waits.longest:
        return None
    return attempt.waits.longest[request] - run.idle.longest.get(request, 0.0)


def _of_attempt(run: Run, attempt: Attempt) -> Iterator[str]:
    name = f"{attempt.attack.name}, pass {attempt.number + 1}"
    for answer in attempt.attack.unexpected(attempt.answers):
        yield f"{name}: expected {attempt.attack.expected}, got {answer}"
    for failure in attempt.waits.failures[:_MAX_FAILURES]:
        yield f"{name}: a request of others failed: {failure}"
    for request, most in MAX_MORE_SECONDS.items():
        if (more := more_seconds(run, attempt, request)) is not None and more > most:
            yield (
                f"{name}: others waited {attempt.waits.longest[request]:.2f} s ({request}), "
                f"{more:.2f} s longer than without; at most {most:g} s is allowed"
            )


def _of_memory(run: Run) -> Iterator[str]:
    if len(run.memory_mib) < 3:
        return
    _, first, second = run.memory_mib
    if second - first > MAX_MORE_MIB:
        worst = max((a for a in run.attempts if a.number), key=lambda attempt: attempt.growth_mib)
        yield (
            f"memory: {second:.0f} MiB after the second pass, {first:.0f} after the first; at most "
            f"{MAX_MORE_MIB:g} more is allowed ({worst.attack.name}: {worst.growth_mib:+.0f})"
        )


def _of_end(run: Run, max_end_seconds: float) -> Iterator[str]:
    if run.end_problem is not None:
        yield f"the end under attack: {run.end_problem}"
    if run.end_seconds is not None and run.end_seconds > max_end_seconds:
        yield (
            f"the end under attack: {run.end_seconds:.1f} s after SIGTERM, at most "
            f"{max_end_seconds:g} s is allowed"
        )
