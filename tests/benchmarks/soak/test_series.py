"""What is read from a service's series."""

from benchmarks.soak.series import Verifications, left_over, parse

AT_REST = """
# TYPE diffuspec_num_requests_running gauge
diffuspec_num_requests_running{pipeline="a"} 0.0
# TYPE diffuspec_http_requests_open gauge
diffuspec_http_requests_open 1.0
"""


def steps(value: float, pipeline: str = "a", num_slots: int = 8) -> str:
    return f"""
# TYPE diffuspec_max_requests_running gauge
diffuspec_max_requests_running{{pipeline="{pipeline}"}} {num_slots}
# TYPE diffuspec_step_seconds histogram
diffuspec_step_seconds_count{{pipeline="{pipeline}",stage="step"}} {value}
diffuspec_step_seconds_count{{pipeline="{pipeline}",stage="draft"}} {value}
"""


def test_the_request_that_reads_the_gauges_is_not_left_over():
    assert left_over(parse(AT_REST)) == {}


def test_gauges_of_all_pipelines_are_added_up():
    one_runs = AT_REST + 'diffuspec_num_requests_running{pipeline="b"} 2.0\n'
    assert left_over(parse(one_runs)) == {"diffuspec_num_requests_running": 2}


def test_steps_are_counted_over_a_restart():
    verifications = Verifications()
    for value in (80, 160, 8, 24):
        verifications.read(parse(steps(value)))
    assert verifications.num_calls == 20 + 3


def test_a_service_that_is_away_counts_nothing():
    verifications = Verifications()
    verifications.read(parse(steps(80, num_slots=0)))
    assert verifications.num_calls == 0
