"""The state of a coordinator as Prometheus series, read only when they are collected."""

from __future__ import annotations

import time
from collections.abc import Mapping

from diffuspec.control.costs import BusyTime
from diffuspec.coordinator.admission import Admission
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.core.interfaces import TargetInfo
from diffuspec.telemetry.metrics import Metrics


def bind_gauges(
    metrics: Metrics,
    admission: Admission,
    drafters: DrafterPool | None,
    target: TargetInfo,
    busy: Mapping[str, BusyTime],
) -> None:
    """Let the series read the state of these parts; `busy` by role."""
    num_cached_tokens = target.max_sequences * target.max_model_len

    def cache_usage() -> float:
        return sum(request.num_tokens for request in admission.running) / num_cached_tokens

    metrics.running.read = lambda: admission.num_running
    metrics.waiting.read = lambda: admission.num_waiting
    metrics.max_running.read = lambda: target.max_sequences
    metrics.max_waiting.read = lambda: admission.max_waiting
    metrics.kv_cache_usage.read = cache_usage
    metrics.active_seconds.read = lambda: {(): admission.active.seconds(time.monotonic())}
    metrics.busy_seconds.read = lambda: {
        (role,): time_of.seconds(time.monotonic()) for role, time_of in busy.items()
    }
    if drafters is not None:
        metrics.drafters.read = lambda: drafters.num_available
        metrics.all_drafters.read = lambda: drafters.num_expected
        for name in drafters.names:
            metrics.auto_steps.at(name)
