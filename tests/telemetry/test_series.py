"""Series as Prometheus reads them."""

from prometheus_client import CollectorRegistry, generate_latest

from diffuspec.telemetry.series import SeriesTable


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
