"""Series as Prometheus reads them, of one process or of several, and the time that they count."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.series import SeriesTable, merge_series


def test_series_become_prometheus_text():
    registry = CollectorRegistry()
    table = SeriesTable(registry)
    counter = table.counter("things_total", "Things.", ["kind"], [("a",)])
    counter.inc("b")
    counter.at("b").value += 1
    table.gauge("level", "A level.").read = lambda: 0.5
    histogram = table.histogram("size", "Sizes.", bounds=(1, 2))
    histogram.at().observe(2.0, count=3)
    histogram.at().observe(9.0)
    assert generate_latest(registry).decode().splitlines() == [
        "# HELP diffuspec_things_total Things.",
        "# TYPE diffuspec_things_total counter",
        'diffuspec_things_total{kind="a"} 0.0',
        'diffuspec_things_total{kind="b"} 2.0',
        "# HELP diffuspec_level A level.",
        "# TYPE diffuspec_level gauge",
        "diffuspec_level 0.5",
        "# HELP diffuspec_size Sizes.",
        "# TYPE diffuspec_size histogram",
        'diffuspec_size_bucket{le="1"} 0.0',
        'diffuspec_size_bucket{le="2"} 3.0',
        'diffuspec_size_bucket{le="+Inf"} 4.0',
        "diffuspec_size_count 4.0",
        "diffuspec_size_sum 15.0",
    ]


def test_a_total_can_be_read_from_where_it_is_kept():
    registry = CollectorRegistry()
    total: dict[tuple[str, ...], float] = {("x",): 1.0}
    SeriesTable(registry).counter("busy_total", "Busy.", ["role"]).read = lambda: total
    assert registry.get_sample_value("diffuspec_busy_total", {"role": "x"}) == 1
    total[("x",)] = 3.0
    assert registry.get_sample_value("diffuspec_busy_total", {"role": "x"}) == 3


def text(count: int) -> str:
    registry = CollectorRegistry()
    Counter("tokens", "Tokens.", ["kind"], registry=registry).labels("a").inc(count)
    Histogram("seconds", "Time.", buckets=[1, 2], registry=registry).observe(count)
    return generate_latest(registry).decode()


def test_every_series_has_the_label_of_its_process():
    merged = merge_series("pipeline", {"p": text(1), "q": text(2)})
    families = {one.name: one for one in text_string_to_metric_families(merged)}
    found = {(s.labels["pipeline"], s.name): s.value for s in families["tokens"].samples}
    assert found[("p", "tokens_total")] == 1 and found[("q", "tokens_total")] == 2
    assert {one.labels["pipeline"] for one in families["seconds"].samples} == {"p", "q"}
    assert merged.count("# TYPE seconds histogram") == merged.count("# TYPE tokens_total") == 1


def test_without_texts_there_are_no_series():
    assert merge_series("pipeline", {}) == ""


def test_overlapping_calls_count_once_as_busy_time():
    busy = BusyTime()
    busy.begin(1.0)
    busy.begin(2.0)
    assert busy.seconds(2.5) == pytest.approx(1.5)
    busy.end(3.0)
    busy.end(5.0)
    assert busy.seconds(9.0) == pytest.approx(4.0)
    busy.begin(9.0)
    assert busy.seconds(10.0) == pytest.approx(5.0)
