import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.core.types import FinishReason, StepStats
from diffuspec.telemetry.metrics import Metrics, RequestTimes
from diffuspec.telemetry.request_stats import summarize


@st.composite
def a_step(draw: st.DrawFn) -> StepStats:
    num_nodes = draw(st.integers(0, 40))
    num_accepted = draw(st.integers(0, num_nodes))
    return StepStats(
        num_draft_tokens=draw(st.integers(0, 40)),
        num_tree_nodes=num_nodes,
        num_accepted_tokens=num_accepted,
        tree_depth=draw(st.integers(max(num_accepted, num_nodes > 0), num_nodes)),
        num_committed_tokens=num_accepted + draw(st.integers(0 if num_accepted else 1, 1)),
        draft_seconds=0.5,
        search_seconds=0.25,
        verify_seconds=1.0,
        step_seconds=2.0,
        fallback=draw(st.sampled_from([None, "drafter_error"])),
    )


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"diffuspec_{name}", labels) or 0.0


@pytest.mark.no_cover
@settings(max_examples=30)
@given(st.lists(a_step(), max_size=8))
def test_series_agree_with_each_other_and_with_the_steps(steps):
    metrics = Metrics()
    for step in steps:
        metrics.observe_step(step)
    drafts = value(metrics, "spec_decode_num_drafts_total")
    accepted = value(metrics, "spec_decode_num_accepted_tokens_total")
    per_position = [
        value(metrics, "spec_decode_num_accepted_tokens_per_pos_total", position=str(position))
        for position in range(41)
    ]
    assert sum(per_position) == accepted
    assert per_position == sorted(per_position, reverse=True)
    assert drafts >= per_position[0]
    assert accepted <= value(metrics, "spec_decode_num_draft_tokens_total")
    drafted = [
        value(metrics, "spec_decode_num_drafts_per_pos_total", position=str(position))
        for position in range(41)
    ]
    assert all(ours <= theirs for ours, theirs in zip(per_position, drafted, strict=True))
    assert drafts == drafted[0]

    sums = summarize(steps, num_prompt_tokens=7)
    assert sums.num_drafts == drafts and sums.num_accepted_tokens == accepted
    assert sums.num_output_tokens == value(metrics, "generation_tokens_total")
    assert sums.num_fallbacks == value(metrics, "fallback_total", reason="drafter_error")
    assert value(metrics, "step_seconds_sum", stage="verify") == sums.verify_seconds == len(steps)
    assert value(metrics, "step_seconds_count", stage="step") == sums.num_steps == len(steps)
    assert value(metrics, "step_seconds_bucket", stage="draft", le="0.25") == 0
    assert value(metrics, "step_seconds_bucket", stage="draft", le="0.5") == len(steps)
    assert value(metrics, "step_seconds_bucket", stage="step", le="+Inf") == len(steps)


def test_acceptance_length_counts_the_targets_own_token():
    steps = [StepStats(4, 4, 3, 4), StepStats(4, 4, 0, 1), StepStats(0, 0, 0, 1)]
    assert summarize(steps, 1).mean_acceptance_length == 2.0


def test_rates_without_steps_are_zero():
    nothing = summarize([], 0)
    assert nothing.mean_acceptance_length == nothing.tokens_per_second == 0


def test_a_finished_request_counts_with_its_reason_sizes_and_times():
    metrics = Metrics()
    metrics.observe_first_token(2.0, 1.5, 12, 8)
    metrics.observe_finish(FinishReason.LENGTH, 12, 30, RequestTimes(10.0, 10.5, 12.0, 15.0))
    assert value(metrics, "request_success_total", finished_reason="length") == 1
    assert value(metrics, "request_success_total", finished_reason="stop") == 0
    assert value(metrics, "prompt_tokens_total") == 12
    assert value(metrics, "prefix_cache_queries_total") == 12
    assert value(metrics, "prefix_cache_hits_total") == 8
    sums = {
        "time_to_first_token_seconds": 2.0,
        "request_prefill_time_seconds": 1.5,
        "e2e_request_latency_seconds": 5.0,
        "request_inference_time_seconds": 4.5,
        "request_decode_time_seconds": 3.0,
        "request_prompt_tokens": 12,
        "request_generation_tokens": 30,
    }
    assert {name: value(metrics, f"{name}_sum") for name in sums} == sums


def test_latency_between_tokens_leaves_out_a_requests_first_step():
    metrics = Metrics()
    metrics.observe_step(StepStats(4, 4, 3, 4, step_seconds=2.0), is_first=True)
    assert value(metrics, "inter_token_latency_seconds_count") == 0
    metrics.observe_step(StepStats(4, 4, 3, 4, step_seconds=2.0))
    metrics.observe_step(StepStats(0, 0, 0, 1, step_seconds=0.2))
    assert value(metrics, "inter_token_latency_seconds_count") == 5  # one for each token
    assert value(metrics, "inter_token_latency_seconds_sum") == pytest.approx(2.2)
    assert value(metrics, "inter_token_latency_seconds_bucket", le="0.25") == 1


def test_two_coordinators_do_not_share_series():
    one, two = Metrics(), Metrics()
    one.observe_cancel()
    assert value(one, "request_cancelled_total") == 1
    assert value(two, "request_cancelled_total") == 0


def test_failures_and_refusals_are_counted_from_zero_on():
    registry = Metrics().registry
    for name, error in (
        ("request_failed_total", "VerifierError"),
        ("request_failed_total", "VerifierUnavailableError"),
        ("request_refused_total", "OverloadedError"),
        ("request_refused_total", "ContextLengthError"),
    ):
        assert registry.get_sample_value(f"diffuspec_{name}", {"error": error}) == 0
