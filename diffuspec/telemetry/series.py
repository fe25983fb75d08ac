"""Prometheus series kept as plain numbers, and converted only when they are collected.

Each step updates dozens of them, and Prometheus's own counters take a lock for each update. These
belong to one thread; any thread may collect them.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import ClassVar, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

PREFIX = "diffuspec_"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

LabelValues: TypeAlias = tuple[str, ...]


class Count:
    """The value of a counter for one combination of label values."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class Buckets:
    """The observations of a histogram for one combination of label values."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * len(bounds)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Add `count` observations of the same value."""
        self.counts[bisect_left(self._bounds, value)] += count
        self.sum += value * count


class Series:
    """A metric: a name, and a number or a histogram for each combination of label values."""

    kind: ClassVar[str]

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = PREFIX + name
        self.text = text
        self.labels = tuple(labels)

    def family(self) -> Metric:
        """Return the present state as a Prometheus metric."""
        raise NotImplementedError


class Counter(Series):
    """Counts up from 0, or reads a total kept elsewhere."""

    kind = "counter"

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        known: Iterable[LabelValues] = (),
    ) -> None:
        """`known` label values exist from the start, so that a first event is an increase."""
        super().__init__(name, text, labels)
        self._counts: dict[LabelValues, Count] = {}
        self.read: Callable[[], Mapping[LabelValues, float]] | None = None
        for values in known if labels else [()]:
            self.at(*values)

    def at(self, *labels: str) -> Count:
        """Return the count for these label values, which callers may keep."""
        count = self._counts.get(labels)
        if count is None:
            count = self._counts[labels] = Count()
        return count

    def inc(self, *labels: str) -> None:
        self.at(*labels).value += 1

    def family(self) -> Metric:
        family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        values = {labels: count.value for labels, count in [*self._counts.items()]}
        if self.read is not None:
            values |= self.read()
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family


class Gauge(Series):
    """A number that goes up and down, read from its source on collection."""

    kind = "gauge"

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.read: Callable[[], float] = float

    def family(self) -> Metric:
        return GaugeMetricFamily(self.name, self.text, value=self.read())


class Histogram(Series):
    """Counts observations by size."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = SECONDS,
    ) -> None:
        super().__init__(name, text, labels)
        self._bounds = (*bounds, math.inf)
        self._names = [*map(str, bounds), "+Inf"]
        self._buckets: dict[LabelValues, Buckets] = {}
        if not labels:
            self.at()

    def at(self, *labels: str) -> Buckets:
        """Return the buckets for these label values, which callers may keep."""
        buckets = self._buckets.get(labels)
        if buckets is None:
            buckets = self._buckets[labels] = Buckets(self._bounds)
        return buckets

    def family(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for labels, one in [*self._buckets.items()]:
            table = [*zip(self._names, accumulate(one.counts), strict=True)]
            family.add_metric(labels, buckets=table, sum_value=one.sum)
        return family


class SeriesTable(Collector):
    """Series that are collected together, in the order in which they were added."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.series: list[Series] = []
        registry.register(self)

    def counter(
        self, name: str, text: str, labels: Sequence[str] = (), known: Iterable[LabelValues] = ()
    ) -> Counter:
        series = Counter(name, text, labels, known)
        self.series.append(series)
        return series

    def gauge(self, name: str, text: str) -> Gauge:
        series = Gauge(name, text)
        self.series.append(series)
        return series

    def histogram(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = SECONDS,
    ) -> Histogram:
        series = Histogram(name, text, labels, bounds)
        self.series.append(series)
        return series

    def collect(self) -> Iterator[Metric]:
        for series in self.series:
            yield series.family()


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> list[Metric]:
        return self._families


def series_text(families: Iterable[Metric]) -> str:
    """Return families of series in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return str(generate_latest(registry).decode())


def merge_series(label: str, texts: Mapping[str, str]) -> str:
    """Return the series of all texts, each labelled with the name of its text."""
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
