"""The application of deploy/app.py on a cluster, as `serve deploy` puts it there."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import ray
from ray import serve
from ray.serve._private.api import serve_start
from ray.serve.schema import ServeDeploySchema
from ray.util import placement_group_table

from actors.service.directory import Member
from actors.settings import PipelineConfig
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from tests.support.ports import free_port

APP = "diffuspec"


class ServeApp:
    """The application, with a number of pipelines that can be changed."""

    def __init__(self, client: Any, args: dict[str, Any], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._client, self._args, self._port = client, dict(args), port

    def deploy(
        self,
        num_pipelines: int,
        *,
        accepts_requests: bool = True,
        waits: bool = False,
        **args: Any,
    ) -> None:
        """Submit the configuration; changes are made in the background. args: those that change."""
        self._args |= args
        pipelines = {
            "name": "Pipeline",
            "num_replicas": num_pipelines,
            "user_config": {"accepts_requests": accepts_requests},
        }
        application = {
            "name": APP,
            "route_prefix": "/",
            "import_path": "deploy.app:build",
            "args": self._args,
            "deployments": [pipelines],
        }
        http = {"host": "127.0.0.1", "port": self._port}
        data = {"http_options": http, "applications": [application]}
        self._client.deploy_apps(ServeDeploySchema.model_validate(data), _blocking=False)
        while waits and not _is_running():  # by itself Serve waits for a minute only
            time.sleep(0.2)

    async def pipelines(self, number: int | None = None, without: str = "") -> Sequence[Member]:
        """Return what the directory says, once that many pipelines are up and take requests.

        without: the name of one that must have gone by then.
        """
        while True:
            directory = serve.get_deployment_handle("Directory", APP)
            found: Sequence[Member] = await directory.pipelines.remote()
            up = [one for one in found if one.address and one.accepts_requests]
            is_gone = without not in [one.name for one in found]
            if number is None or (number == len(up) == len(found) and is_gone):
                return found
            await asyncio.sleep(0.1)


def _is_running() -> bool:
    found = serve.status().applications.get(APP)
    assert found is None or found.status != "DEPLOY_FAILED", found
    return found is not None and found.status == "RUNNING"


@contextmanager
def serve_app(args: dict[str, Any]) -> Iterator[ServeApp]:
    """Start Serve on the cluster that this process is connected to; end it with the context."""
    port = free_port()
    client = serve_start(http_options={"host": "127.0.0.1", "port": port})
    try:
        yield ServeApp(client, args, port)
    finally:
        serve.shutdown()


async def status_of(member: Member, config: PipelineConfig) -> ServiceStatus:
    """Ask a pipeline's coordinator, with the address and the token of the directory."""
    client = await RemoteCoordinator.connect(member.address, member.security)
    try:
        return await client.status()
    finally:
        await client.close()


def replica_process(deployment: str, name: str) -> psutil.Process:
    """Return the process of a replica."""
    actor = ray.get_actor(f"SERVE_REPLICA::{APP}#{deployment}#{name}", namespace="serve")
    return psutil.Process(ray.get(actor.__ray_call__.remote(lambda replica: os.getpid())))


def processes(*titles: str) -> set[psutil.Process]:
    """Return the processes of clusters of this process whose titles begin so."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if " ".join(process.cmdline()).startswith(titles):
                found.add(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def role_processes() -> set[psutil.Process]:
    """Return the processes of all roles."""
    return processes("ray::Coordinator", "ray::Verifier", "ray::Drafter", "ray::PathScorer")


def num_groups() -> int:
    """Return the number of placement groups that there are."""
    return sum(group["state"] != "REMOVED" for group in placement_group_table().values())


def kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)
