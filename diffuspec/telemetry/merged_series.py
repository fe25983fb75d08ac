"""Prometheus series of several processes as one text."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry


class _Merged(Collector):
    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return list(self._families.values())


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
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(families))
    return str(generate_latest(registry).decode())
