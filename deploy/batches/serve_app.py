"""Finds the application that Ray Serve runs on a cluster, for `--address auto`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from deploy.local_ray import running_cluster
from diffuspec.core.errors import ConfigError

_EVERYWHERE = ("0.0.0.0", "::", "")


def running_app() -> str:
    """Return the URL of the application on RAY_ADDRESS's cluster, or on one found on this machine.

    Raises ConfigError if there is no cluster, or if it does not serve exactly one application.
    """
    given = os.environ.get("RAY_ADDRESS")
    with running_cluster(given or "auto", "RAY_ADDRESS" if given else "--address"):
        from ray.serve.context import _get_global_client

        client = _get_global_client(raise_if_no_controller_running=False)
        if client is None:
            raise ConfigError("--address auto: this cluster does not run Ray Serve")
        return url_of(client.http_config, client.get_serve_details())


class HttpOptions(Protocol):
    """The address at which Serve listens, with Serve's field names."""

    @property
    def host(self) -> str | None: ...

    @property
    def port(self) -> int: ...

    @property
    def ssl_certfile(self) -> str | None: ...


def url_of(http: HttpOptions, details: Mapping[str, Any]) -> str:
    """Return the URL of the only application in Serve's details. Raises ConfigError."""
    apps = {
        name: app["route_prefix"]
        for name, app in details["applications"].items()
        if app["status"] == "RUNNING" and app["route_prefix"] is not None
    }
    if len(apps) != 1:
        found = ", ".join(f"{name} at {prefix}" for name, prefix in apps.items()) or "none"
        raise ConfigError(
            f"--address auto needs one running application of Ray Serve, found {found}; give its "
            "URL instead"
        )
    [prefix] = apps.values()
    host = http.host or ""
    if host in _EVERYWHERE:
        host = _healthy_proxy(details["proxies"])
    scheme = "https" if http.ssl_certfile else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{http.port}{prefix.rstrip('/')}"


def _healthy_proxy(proxies: Mapping[str, Mapping[str, Any]]) -> str:
    healthy = sorted(proxy["node_ip"] for proxy in proxies.values() if proxy["status"] == "HEALTHY")
    if not healthy:
        raise ConfigError("--address auto: no proxy of Ray Serve is healthy; try again later")
    return str(healthy[0])
