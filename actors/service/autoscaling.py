"""The number of pipelines that Serve should run, given their requests."""

from __future__ import annotations

from typing import Any

from actors.service.replica import NUM_REQUESTS


def by_requests(context: Any) -> tuple[float, dict[str, Any]]:
    """Return the number of replicas at which each has target_ongoing_requests.

    Tokens do not pass through Serve, so its own counts are 0; pipelines report their running and
    waiting requests instead. Serve applies the bounds and delays of `autoscaling_config` to the
    result.
    """
    loads = (context.aggregated_metrics or {}).get(NUM_REQUESTS, {})
    if not loads:
        return float(context.target_num_replicas), {}
    return sum(loads.values()) / context.config.target_ongoing_requests, {}
