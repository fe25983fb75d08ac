"""Metrics and health over HTTP, for a process without an HTTP server."""

from __future__ import annotations

import httpx2
from prometheus_client import CollectorRegistry, Counter

from diffuspec.telemetry.metrics_server import serving_metrics
from tests.support.ports import free_port


def test_health_is_what_the_process_says_and_other_paths_are_metrics():
    registry, healthy = CollectorRegistry(), [True]
    Counter("drafts", "Drafts.", registry=registry).inc()
    port = free_port()
    with serving_metrics(port, registry, lambda: healthy[0]):
        base = f"http://127.0.0.1:{port}"
        assert "drafts_total 1.0" in httpx2.get(f"{base}/metrics").text
        assert httpx2.get(f"{base}/health").status_code == 200
        healthy[0] = False
        assert httpx2.get(f"{base}/health").status_code == 503
