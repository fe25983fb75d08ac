"""The figures, computed from answers that are known."""

import pytest

from diffuspec.bench.stats import (
    QuestionCost,
    Row,
    acceptance_by_position,
    bootstrap,
    compute_rows,
    headline_family,
)
from diffuspec.core.types import StepStats
from tests.bench.conftest import make_record


def step(accepted: int = 0, depth: int = 0) -> StepStats:
    """A step that took 4 s: 1 of drafting, 0.5 of search and 2 of verification."""
    return StepStats(
        num_draft_tokens=depth,
        num_tree_nodes=depth,
        num_accepted_tokens=accepted,
        num_committed_tokens=accepted + 1,
        tree_depth=depth,
        draft_seconds=1.0,
        search_seconds=0.5,
        verify_seconds=2.0,
        step_seconds=4.0,
    )


def find(rows: list[Row], system: str, family: str = "all") -> Row:
    (row,) = (row for row in rows if (row.system, row.family) == (system, family))
    return row


def test_pooled_speed_up_and_spec_benchs_differ_as_defined() -> None:
    # Tokens/s, plain: 10/1 and 10/10. Paper: 10/0.5 and 10/10.
    records = [
        make_record("plain", range(10), 1.0, question_id=1),
        make_record("plain", range(10), 10.0, question_id=2),
        make_record("paper", range(10), 0.5, question_id=1),
        make_record("paper", range(10), 10.0, question_id=2),
    ]
    row = find(compute_rows(records, ("plain", "paper")), "paper")
    assert row.tokens_per_second == pytest.approx(20 / 10.5)
    assert row.speedup == pytest.approx((20 / 10.5) / (20 / 11))
    assert row.spec_bench_speedup == pytest.approx(((20 + 1) / 2) / ((10 + 1) / 2))


def test_the_turns_of_a_question_are_pooled() -> None:
    records = [
        make_record("plain", range(4), 1.0, turn=0),
        make_record("plain", range(8), 1.0, turn=1),
    ]
    row = find(compute_rows(records, ("plain",)), "plain")
    assert row.num_questions == 1
    assert row.num_output_tokens == 12
    assert row.spec_bench_speedup == 1


def test_acceptance_length_counts_the_targets_own_token_and_pools_steps() -> None:
    long = tuple(step(accepted=3, depth=5) for _ in range(3))  # 12 tokens in 3 steps
    records = [
        make_record("plain", range(13)),
        make_record("paper", range(12), steps=long, question_id=1),
        make_record("paper", range(1), steps=(step(),), question_id=2),
    ]
    row = find(compute_rows(records, ("plain", "paper")), "paper")
    assert row.mean_acceptance_length == 13 / 4
    assert row.num_accepted_tokens == 9
    assert find(compute_rows(records, ("plain", "paper")), "plain").mean_acceptance_length == 1


def test_for_systems_without_steps_of_ours_the_passes_count() -> None:
    records = [make_record("plain", range(9)), make_record("lookup", range(9), num_steps=3)]
    row = find(compute_rows(records, ("plain", "lookup")), "lookup")
    assert (row.mean_acceptance_length, row.num_accepted_tokens, row.costs) == (3, 6, None)


def test_shares_and_overhead_are_of_what_was_measured() -> None:
    steps = (step(1, 4), step(1, 6))
    record = make_record("plain", range(4), 10.0, steps=steps, forward_seconds=5.0)
    costs = find(compute_rows([record], ("plain",)), "plain").costs
    assert costs is not None
    shares = (costs.draft_share, costs.search_share, costs.verify_share, costs.other_share)
    assert shares == pytest.approx((0.2, 0.1, 0.4, 0.3))
    assert costs.overhead_ms_per_step == pytest.approx(1000 * (8 - 5) / 2)
    assert costs.search_ms_per_step == pytest.approx(500)
    assert costs.mean_draft_tokens == 5


def test_steps_that_lost_their_draft_are_counted() -> None:
    steps = (step(), StepStats(0, 0, 0, 1, fallback="drafter_error"))
    record = make_record("plain", range(2), steps=steps, forward_seconds=0.1)
    costs = find(compute_rows([record], ("plain",)), "plain").costs
    assert costs is not None and costs.num_fallbacks == 1


def test_rows_come_family_by_family_in_the_order_of_the_systems() -> None:
    records = [
        make_record(system, family=family, question_id=i)
        for i, family in enumerate(("rag", "qa"))
        for system in ("paper", "plain")
    ]
    rows = compute_rows(records, ("plain", "paper"))
    assert [(row.family, row.system) for row in rows] == [
        (family, system) for family in ("rag", "qa", "all") for system in ("plain", "paper")
    ]
    assert headline_family(rows) == "all"


def test_with_a_seventh_family_the_six_are_the_headline() -> None:
    records = [
        make_record(family=family, question_id=i)
        for i, family in enumerate(("qa", "code", "mt_bench"))
    ]
    rows = compute_rows(records, ("plain",))
    assert [row.family for row in rows] == ["qa", "code", "mt_bench", "spec_bench", "all"]
    assert [row.num_questions for row in rows] == [1, 1, 1, 2, 3]
    assert headline_family(rows) == "spec_bench"


def test_only_spec_bench_families_have_a_spec_bench_row() -> None:
    rows = compute_rows([make_record(family="code")], ("plain",))
    assert [row.family for row in rows] == ["code", "all"]


def test_acceptance_by_position_is_the_share_of_drafts() -> None:
    steps = (step(accepted=2, depth=3), step(accepted=0, depth=2), step(accepted=3, depth=3))
    records = [
        make_record("plain", range(3), steps=(step(), step(), step())),
        make_record("paper", range(8), steps=(*steps, step())),  # the last had no draft
    ]
    assert acceptance_by_position(records) == {"paper": pytest.approx([2 / 3, 2 / 3, 1 / 3])}


def test_nothing_measured_is_no_division_by_zero() -> None:
    record = make_record("plain", (), seconds=0.0, forward_seconds=0.0)
    row = find(compute_rows([record], ("plain",)), "plain")
    assert (row.tokens_per_second, row.speedup, row.mean_acceptance_length) == (0, 0, 0)


def test_questions_that_all_say_the_same_leave_no_doubt() -> None:
    own = [QuestionCost(12, 1.0, 3)] * 5
    baseline = [QuestionCost(12, 2.0, 12)] * 5
    found = bootstrap(own, baseline)
    assert found.speedup == found.spec_bench_speedup == pytest.approx((2, 2))
    assert found.mean_acceptance_length == pytest.approx((4, 4))


def test_a_question_that_is_slow_for_both_does_not_widen_the_ratio() -> None:
    baseline = [QuestionCost(10, seconds, 10) for seconds in (1.0, 2.0, 8.0, 30.0)]
    own = [QuestionCost(10, cost.seconds / 2, 5) for cost in baseline]
    assert bootstrap(own, baseline).speedup == pytest.approx((2, 2))


def test_questions_that_differ_give_an_interval_around_the_mean() -> None:
    baseline = [QuestionCost(10, 10.0, 10)] * 40
    own = [QuestionCost(10, 10.0 if i % 2 else 5.0, 5) for i in range(40)]
    low, high = bootstrap(own, baseline).speedup
    assert 1.2 < low < 40 / 30 < high < 1.5
    assert bootstrap(own, baseline) == bootstrap(own, baseline)


def test_intervals_of_nothing_are_no_division_by_zero() -> None:
    nothing = [QuestionCost(0, 0.0, 0)]
    assert bootstrap(nothing, nothing).speedup == (0, 0)
