"""Prometheus series of a service, read while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Values: TypeAlias = Mapping[tuple[str, frozenset[tuple[str, str]]], float]  # keys: name and labels

VERIFIED = ("diffuspec_step_seconds_count", ("stage", "step"))
MAX_RUNNING = "diffuspec_max_requests_running"
# Zero when nothing is asked; the request that reads them is open itself.
LOAD: Mapping[str, float] = {
    "diffuspec_num_requests_running": 0,
    "diffuspec_num_requests_waiting": 0,
    "diffuspec_kv_cache_usage_perc": 0,
    "diffuspec_http_requests_open": 1,
}


def parse(text: str) -> Values:
    """Return the values of an exposition in Prometheus' text format."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(values: Values, name: str) -> float:
    """Return the sum of a gauge over all its labels, such as those of pipelines."""
    return sum(value for (of, _), value in values.items() if of == name)


def left_over(values: Values) -> dict[str, float]:
    """Return the gauges of load that are not back at their values at rest."""
    totals = {name: total(values, name) for name in LOAD}
    return {name: value for name, value in totals.items() if value > LOAD[name]}


@dataclass(slots=True)
class Verifications:
    """Counts calls of verifiers from the steps of requests, over restarts of their processes.

    A call verifies at most as many requests as can run, so this is a lower bound.
    """

    num_calls: float = 0.0
    _last: dict[frozenset[tuple[str, str]], float] = field(default_factory=dict)

    def read(self, values: Values) -> None:
        name, stage = VERIFIED
        num_slots = total(values, MAX_RUNNING)
        for (of, labels), value in values.items():
            if of == name and stage in labels and num_slots:
                last = self._last.get(labels, 0.0)
                self.num_calls += (value - last if value >= last else value) / num_slots
                self._last[labels] = value
