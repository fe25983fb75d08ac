"""Series of several processes become one text that Prometheus reads."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from diffuspec.telemetry.merged_series import merge_series


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
