"""Prometheus series of several processes as one text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


def series_text(families: Iterable[Metric]) -> str:
    """Return families of series as Prometheus reads them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return str(generate_latest(registry).decode())


def merge_series(label: str, texts: Mapping[str, str]) -> str:
    """Return the series of all texts, each with a label whose value is the name of its text."""
    families: dict[str, Metric] = {}
    for name, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text):
            merged = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            for sample in family.samples:
                labels = {**sample.labels, label: name}
                merged.samples.append(sample._replace(labels=labels))
    return series_text(families.values())
