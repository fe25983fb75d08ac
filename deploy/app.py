"""The application of Ray Serve: `serve run deploy.app:build pipeline=deploy/pipeline.yaml`.

There are three deployments: `Ingress` (HTTP), `Pipeline` (each replica owns a pipeline on its own
GPUs), and `Directory`, through which ingresses find pipelines. Serve files such as
deploy/serve.yaml change their options under `deployments`; the application's arguments are those of
`ServiceConfig`.
"""

# No `from __future__ import annotations` here: it would hide the type of `args` from Serve.

from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application

from actors.bundles import make_groups
from actors.service.directory import Directory
from actors.service.ingress import Ingress
from actors.service.replica import PipelineReplica
from actors.service.settings import parse_service
from deploy.proxy import MAX_BODY_BYTES
from deploy.tokens import given_token
from diffuspec.core.errors import ConfigError

ROOT = Path(__file__).parents[1]
_HEALTH: dict[str, Any] = {"health_check_period_s": 2, "health_check_timeout_s": 10}
_UNBOUNDED = 100_000  # concurrent calls; the pipelines' own queues are bounded, and answer 429
_SLACK_SECONDS = 20.0  # time for a pipeline to end once its requests have finished


def build(args: dict[str, Any]) -> Application:
    """Return the application. Raises ConfigError for arguments that are unknown or wrong."""
    config = parse_service(args, ROOT)
    if config.http.max_body_bytes > MAX_BODY_BYTES:
        raise ConfigError(
            f"http.max_body_bytes must be at most {MAX_BODY_BYTES}, the limit of the proxies, "
            f"got {config.http.max_body_bytes}"
        )
    directory = serve.deployment(
        name="Directory",
        max_ongoing_requests=_UNBOUNDED,
        ray_actor_options={"num_cpus": 0},
        logging_config={"enable_access_log": False},  # it is called several times a second
        **_HEALTH,
    )(Directory).bind()
    drain_seconds = config.pipeline.deadlines.drain_seconds
    home, *_ = make_groups(config.pipeline)
    pipelines = serve.deployment(
        name="Pipeline",
        max_ongoing_requests=_UNBOUNDED,
        ray_actor_options={"num_cpus": 0},  # its coordinator, which it shares a node with, has some
        placement_group_bundles=[bundle.resources for bundle in home.bundles],
        placement_group_bundle_label_selector=[bundle.labels for bundle in home.bundles],
        placement_group_strategy=home.strategy,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=drain_seconds + _SLACK_SECONDS,
        **_HEALTH,
    )(PipelineReplica).bind(config.pipeline, given_token(config.pipeline), directory)
    ingress = serve.deployment(
        name="Ingress",
        max_ongoing_requests=_UNBOUNDED,
        ray_actor_options={"num_cpus": 0.5},
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=config.http.request_seconds,
        **_HEALTH,
    )(serve.ingress()(Ingress))
    application: Application = ingress.bind(config, directory, pipelines)
    return application
