"""The checks of a run, with measurements within and beyond their bounds."""

from collections.abc import Callable

import pytest

from benchmarks.soak.checks import checks, failed
from benchmarks.soak.client import End
from benchmarks.soak.kills import Kill, Kills
from benchmarks.soak.mixture import Kind
from benchmarks.soak.run import Run
from benchmarks.soak.sample import ProcessSample, Sample
from benchmarks.soak.series import Verifications
from tests.benchmarks.soak.runs import good_run, outcome


def reasons(run: Run) -> list[str]:
    return [reason for check in failed(checks(run)) for reason in check.reasons]


def grow(run: Run, mib_per_thousand: float, more_descriptors: int = 0) -> None:
    process, num_open = (1, 0.0), 10
    for number in range(0, len(run.outcomes) + 1, 100):
        size = int((100 + mib_per_thousand * number / 1000) * 2**20)
        run.samples.append(Sample(number, {process: ProcessSample("python", size, num_open)}))
        num_open += more_descriptors


def test_a_run_without_faults_passes():
    run = good_run()
    grow(run, 0.5)
    assert reasons(run) == []
    measured = {check.name: check.measured for check in checks(run)}
    assert measured["answers"] == "4,000 right, 0 failed"
    assert measured["memory, MiB per 1,000 requests"] == "0.50"
    assert measured["verifications, at least"] == "30,000"


@pytest.mark.parametrize("end", [End.WRONG, End.BROKEN, End.OVERDUE])
def test_a_request_that_fails_is_named(end: End):
    run = good_run()
    run.record(outcome(name="stream 3", end=end, reason="503: away"))
    assert reasons(run) == [f"{end}: stream 3: 503: away"]


def test_of_many_failures_a_few_are_told():
    run = good_run()
    for _ in range(9):
        run.record(outcome(end=End.BROKEN, reason="x" * 1000))
    [first, *_, last] = reasons(run)
    assert len(first) == 300
    assert last == "and 6 more"


@pytest.mark.parametrize(
    ("end", "has_passed"), [(End.BROKEN, True), (End.WRONG, False), (End.OVERDUE, False)]
)
def test_a_kill_excuses_only_broken_answers(end: End, has_passed: bool):
    run = good_run(kills=Kills([Kill("verifier", 0.2, 0.4)]))
    run.record(outcome(end=end))
    assert (reasons(run) == []) is has_passed


def test_a_request_longer_than_ten_times_the_median_of_its_kind_fails():
    run = good_run()
    run.record(outcome(Kind.TOOL, ended=5.1))  # the only one of its kind
    assert reasons(run) == []
    run.record(outcome(name="stream 7", ended=5.1))
    assert reasons(run) == ["stream 7 took 5.10 s, 10 times the median of its kind"]


@pytest.mark.parametrize("kind", [Kind.SLOW, Kind.ABORT])
def test_slow_readers_and_aborts_take_their_time(kind: Kind):
    run = good_run()
    for _ in range(9):
        run.record(outcome(kind))
    run.record(outcome(kind, ended=50.0))
    assert reasons(run) == []


def test_requests_beside_a_kill_take_their_time():
    run = good_run(kills=Kills([Kill("verifier", 100.0, 110.0)]))
    run.record(outcome(began=99.0, ended=111.0))
    assert reasons(run) == []


def test_seconds_are_not_long_for_requests_of_milliseconds():
    run = good_run()
    for _ in range(9):
        run.record(outcome(Kind.BAD, ended=0.01, end=End.REFUSED))
    run.record(outcome(Kind.BAD, ended=4.9, end=End.REFUSED))
    assert reasons(run) == []


def test_memory_that_grows_fails():
    run = good_run()
    grow(run, 1.5)
    assert reasons(run) == ["grows by 1.50 MiB per 1,000 requests, at most 1 is allowed"]


def test_descriptors_that_grow_fail():
    run = good_run()
    grow(run, 0.0, more_descriptors=1)
    assert reasons(run) == ["python (1) has 21 more at the end than after the warm-up"]


def test_a_short_run_says_nothing_about_memory_and_verifications():
    run = good_run(seconds=60.0, num_requests=1500)
    run.verifications = Verifications(100)
    grow(run, 50.0)
    assert reasons(run) == []


def spoil(run: Run, change: Callable[[Run], object]) -> list[str]:
    change(run)
    return reasons(run)


def test_faults_of_the_service_are_told():
    assert spoil(good_run(), lambda run: run.problem("ended")) == ["ended"]
    assert spoil(good_run(), lambda run: run.left_over.update(running=2.0)) == [
        "running is 2 at rest"
    ]
    assert spoil(good_run(), lambda run: setattr(run, "lost_slots", "7 of 8")) == ["7 of 8"]
    few = Verifications(24_999)
    assert spoil(good_run(), lambda run: setattr(run, "verifications", few)) == [
        "24,999 verifications, at least 25,000 are needed"
    ]
