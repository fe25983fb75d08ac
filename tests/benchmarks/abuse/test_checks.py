"""The bounds that a run of attacks must keep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.abuse.attack import Answers, Attack, Attempt, Clients
from benchmarks.abuse.bystanders import Request, Waits
from benchmarks.abuse.checks import failures
from benchmarks.abuse.report import lines, rows, to_markdown
from benchmarks.abuse.run import Run


async def nothing(clients: Clients, number: int) -> Answers:
    return []


ATTACK = Attack("a flood", "400|429 .*", nothing)


def waits(plain: float = 0.3, form: float = 0.4) -> Waits:
    return Waits({Request.PLAIN: plain, Request.FORM: form}, {Request.PLAIN: 2, Request.FORM: 1})


def attempt(number: int, *answers: str) -> Attempt:
    return Attempt(ATTACK, number, answers or ("400",), 1.0, waits(), 4.0)


def good_run() -> Run:
    run = Run("serve", waits(0.2, 0.3), memory_mib=[1000.0, 1020.0, 1030.0], end_seconds=3.0)
    run.attempts = [attempt(0, "400", "429 a", "400"), attempt(1)]
    return run


def test_a_run_within_its_bounds_has_no_failures():
    assert failures(good_run(), 35.0) == []


def test_an_answer_that_is_not_expected_is_told():
    run = good_run()
    run.attempts[1] = attempt(1, "400", "500 internal_error", "500 internal_error")
    [reason] = failures(run, 35.0)
    assert reason == "a flood, pass 2: expected 400|429 .*, got 500 internal_error"


@pytest.mark.parametrize(
    ("longest", "reason"),
    [
        ({"plain": 1.3}, "others waited 1.30 s (plain), 1.10 s longer than without; at most 1 s"),
        ({"form": 2.5}, "others waited 2.50 s (new form), 2.20 s longer than without; at most 2"),
        ({"plain": 1.19, "form": 2.29}, None),
    ],
)
def test_others_that_wait_longer_than_without_an_attack_are_told(
    longest: dict[str, float], reason: str | None
):
    run = good_run()
    run.attempts[0] = replace(run.attempts[0], waits=waits(**longest))
    assert len(found := failures(run, 35.0)) == (reason is not None)
    assert all(reason is not None and reason in line for line in found)


def test_requests_of_others_that_fail_are_told():
    run = good_run()
    run.attempts[0].waits.failures.append("plain: 503 unavailable")
    assert failures(run, 35.0) == [
        "a flood, pass 1: a request of others failed: plain: 503 unavailable"
    ]


def test_memory_that_a_second_pass_takes_more_is_told_with_what_took_most():
    run = good_run()
    run.memory_mib[2] = 1090.0
    [reason] = failures(run, 35.0)
    assert reason.startswith("memory: 1090 MiB after the second pass, 1020 after the first")
    assert "a flood: +4" in reason


def test_an_end_that_is_late_or_bad_is_told():
    run = good_run()
    run.end_seconds, run.end_problem = 36.0, "ended with status 1"
    late, bad = sorted(failures(run, 35.0))
    assert late == "the end under attack: 36.0 s after SIGTERM, at most 35 s is allowed"
    assert bad == "the end under attack: ended with status 1"


def test_the_table_has_both_passes_of_each_attack():
    run = good_run()
    [row] = rows(run)
    answers = "2 x 400, 1 x 429 a / 400"
    assert row == (
        "a flood",
        answers,
        "1.0 / 1.0",
        "0.30 / 0.30",
        "- / -",
        "0.40 / 0.40",
        "+4 / +4",
    )
    assert to_markdown(run).splitlines()[2:] == [
        "| nothing |  |  | 0.20 | - | 0.30 |  |",
        f"| {' | '.join(row)} |",
    ]
    assert [*lines(run)][1] == "ended 3.0 s after SIGTERM, under attack"
