"""Prometheus series of an actor through Ray's own exporter, at every node's metrics port.

Every sample becomes one of Ray's gauges, named with the prefix `ray_`. So do totals and buckets:
Prometheus computes their rates just as for counters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry
from ray.util.metrics import Gauge

from actors.roles.coordinator import CoordinatorActor

logger = logging.getLogger(__name__)

EXPORT_SECONDS = 5.0


class RayExporter:
    """Copies the samples of a registry to Ray's exporter. Not thread-safe."""

    def __init__(self, registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
        """`labels` are added to every sample's own."""
        self._registry = registry
        self._labels = dict(labels)
        self._gauges: dict[str, Gauge] = {}

    def export(self) -> None:
        """Pass the present values to Ray."""
        for family in self._registry.collect():
            for sample in family.samples:
                tags = {**self._labels, **sample.labels}
                gauge = self._gauges.get(sample.name)
                if gauge is None:
                    gauge = Gauge(sample.name, family.documentation, tuple(sorted(tags)))
                    self._gauges[sample.name] = gauge
                gauge.set(float(sample.value), tags)


def export_always(registry: CollectorRegistry, labels: Mapping[str, str]) -> None:
    """Export every few seconds, in a daemon thread."""
    exporter = RayExporter(registry, labels)

    def run() -> None:
        while True:
            try:
                exporter.export()
            except Exception as error:  # the next export may succeed
                logger.warning("series were not exported: %s", error)
            time.sleep(EXPORT_SECONDS)

    threading.Thread(target=run, name="export", daemon=True).start()


def export_coordinator(actor: CoordinatorActor, pipeline: str) -> None:
    """Export a coordinator's series with its pipeline's name. Runs in its process."""
    export_always(actor.engine.metrics.registry, {"pipeline": pipeline})
