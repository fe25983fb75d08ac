"""A Ray cluster of several nodes on this machine."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray._private import ray_constants, services, utils
from ray._private.node import Node
from ray.cluster_utils import Cluster

from deploy.proxy import CALLBACK, CALLBACK_VARIABLE
from tests.support import forked, ray_agent
from tests.support.ports import free_port

NODE: dict[str, Any] = {
    "num_gpus": 0,
    "object_store_memory": 100 * 2**20,
    "setup_worker_path": forked.__file__,  # workers are forked
}
_start_ray_process = services.start_ray_process
_PYTHON_OF = "_build_python_executable_command_memory_profileable"


def _python_of(component: str, *_: object, **__: object) -> list[str]:
    """Return what comes before a program of Ray's on its command line."""
    if component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT:
        return [sys.executable, "-S", ray_agent.__file__]
    return [sys.executable, "-u"]


def _start_with_jobs_alone(command: list[str], kind: str, **options: Any) -> object:
    """Start a process of Ray's; a dashboard, which has ten processes of its own, with two."""
    if kind == ray_constants.PROCESS_TYPE_DASHBOARD:
        command = [*command, "--modules-to-load=JobHead,NodeHead"]
    return _start_ray_process(command, kind, **options)


@contextlib.contextmanager
def local_cluster(dashboard_port: int | None = None) -> Iterator[Cluster]:
    """Start a cluster of one node that claims eight CPUs, whatever the machine has; connect to it.

    dashboard_port: start Ray's dashboard there, with the server of jobs, and do not connect: this
    process may be connected to another cluster.

    It reads and writes nothing outside its own directory, so that no cluster of an earlier run or
    beside it matters.
    """
    with contextlib.ExitStack() as stack:
        short = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        variables = {
            "RAY_TMPDIR": stack.enter_context(short),  # short: sockets are named below it
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            CALLBACK_VARIABLE: CALLBACK,  # for proxies of Serve
            "RAY_enable_worker_prestart": "0",  # workers that no test needs
            "RAY_prestart_worker_first_driver": "0",
            "RAY_worker_niceness": "0",  # actors are as quick as the processes around them
            "REPORTER_UPDATE_INTERVAL_MS": "60000",  # ms between measurements of processes
            "RAY_health_check_period_ms": "1000",  # a node that is stopped is missed within seconds
            "RAY_health_check_timeout_ms": "2000",
        }
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in variables.items():
            patch.setenv(name, value)
        head = {**NODE, "num_cpus": 8, "include_dashboard": dashboard_port is not None}
        head |= {"include_log_monitor": False, "no_monitor": True}  # tests read neither
        with pytest.MonkeyPatch.context() as start:
            if dashboard_port is None:  # no process of a dashboard either, for which Ray would wait
                start.setattr(Node, "start_api_server", lambda *_, **__: None)
            else:
                start.setattr(utils, "get_dashboard_dependency_error", lambda: None)
                start.setattr(services, "start_ray_process", _start_with_jobs_alone)
                head["dashboard_port"] = dashboard_port
                head["dashboard_agent_listen_port"] = free_port()  # Ray's own is the same for all
            cluster = Cluster(initialize_head=True, head_node_args=head)
        patch.setattr(services, _PYTHON_OF, _python_of)  # for further nodes
        stack.callback(cluster.shutdown)
        if dashboard_port is None:
            ray.init(address=cluster.address, log_to_driver=False)
            stack.callback(ray.shutdown)
        yield cluster
