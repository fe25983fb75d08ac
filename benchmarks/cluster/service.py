"""A Ray cluster on machines, started as its documents say, and the service on it."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import yaml

from benchmarks.cluster.machines import HOME, ROOT, Machine
from benchmarks.cluster.redis import Redis
from diffuspec.core.errors import WorkerError
from diffuspec.serve.http.keys import add_key

PORT = 8000

_FILE = ROOT / "deploy" / "cluster" / "ray_cluster_local.yaml"
ENVIRONMENT = f"source {HOME}/diffuspec/deploy/cluster/node.env; cd {HOME}/diffuspec"
_LABEL = "diffuspec-role"
_NODE = "--object-store-memory=100000000 --num-gpus=0 --num-cpus="
_START_SECONDS = 300.0
_PATIENT = "RAY_raylet_start_wait_time_s=90"  # five machines start on a few cores
_PROCESSES = {
    "coordinator": "ray::CoordinatorActor",
    "drafter": "ray::DrafterActor",
    "verifier": "ray::VerifierRank",
    "ingress": "ray::ServeReplica:diffuspec:Ingress",
}
ROLES = {  # label of each machine; nothing of ours runs on the head
    "head": "head",
    "front1": "coordinator",
    "front2": "coordinator",
    "drafter1": "drafter",
    "verifier1": "verifier",
}
FRONTS = ("front1", "front2")


class Cluster:
    """The machines as a Ray cluster with the service of the embedded pair."""

    def __init__(self, machines: Mapping[str, Machine], redis: Redis | None) -> None:
        """`redis`: keeps the state of the head; None: the head keeps it itself."""
        self.machines = machines
        self._redis = redis
        self._token = secrets.token_hex(32)
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys.yaml"
            self.api_key, self._keys = add_key(keys, "cluster"), keys.read_text()

    def start(self) -> None:
        """Start Ray on all machines."""
        head, *others = self.machines
        self.join(head)
        self.join_all(others)

    def join_all(self, names: Iterable[str]) -> None:
        """Start Ray on machines, two at a time."""
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(self.join, names))

    def deploy(self, ranks: int) -> None:
        """Deploy the service, and wait until it is ready: each rank on a machine of its own."""
        text = yaml.safe_dump(self._application(ranks))
        self._head.run(f"cat >{HOME}/serve.yaml <<'END'\n{text}END")
        self.on_head(f"serve deploy {HOME}/serve.yaml")
        ends_at = time.monotonic() + _START_SECONDS
        while not (self.is_ready() and len(self.processes("verifier")) == ranks):
            if time.monotonic() > ends_at:
                raise WorkerError(f"it does not start: {self.on_head('serve status')[-3000:]}")
            time.sleep(1.0)

    def join(self, name: str) -> None:
        """Start Ray on a machine, by the commands of the cluster's file."""
        machine, role = self.machines[name], ROLES[name]
        files = {
            ".ray/auth_token": self._token,
            "labels.yaml": f"{_LABEL}: {role}",
            "resources.json": "{}",
            "keys.yaml": self._keys,
        }
        for path, text in files.items():
            machine.run(f"cat >{HOME}/{path} <<'END'\n{text}\nEND")
        kind = "head" if role == "head" else "worker"
        for command in yaml.safe_load(_FILE.read_text())[f"{kind}_start_ray_commands"]:
            if "ray start" in command:
                self._start_ray(machine, 0 if role == "head" else 4, command)
            elif not command.endswith("ray stop"):  # nothing runs there yet
                machine.run(f"export RAY_HEAD_IP={self._head.address}; {command}")

    def _start_ray(self, machine: Machine, num_cpus: int, command: str) -> None:
        """Start Ray; once more if it does not come up, which happens where cores are busy."""
        command = command.replace("--autoscaling-config=~/ray_bootstrap_config.yaml", "")
        variables = [f"RAY_HEAD_IP={self._head.address}", _PATIENT]
        if machine is self._head and self._redis is not None:
            variables += [f"RAY_REDIS_ADDRESS={self._redis.address}"]
            variables += ["RAY_external_storage_namespace=diffuspec"]
            command += f" --redis-password={self._redis.password}"
        line = f"export {' '.join(variables)}; {command} {_NODE}{num_cpus}"
        try:
            machine.run(line, _START_SECONDS)
        except WorkerError:
            machine.run(f"{ENVIRONMENT}; ray stop --force")
            machine.run(line, _START_SECONDS)

    def on_head(self, command: str, seconds: float = 120.0) -> str:
        return self._head.run(f"{ENVIRONMENT}; {command}", seconds)

    def processes(self, role: str) -> dict[str, list[int]]:
        """Return the processes of a role on each machine that has some."""
        found = {}
        for name, machine in self.machines.items():
            if machine.is_up:
                pids = machine.run(f"pgrep -f '^{_PROCESSES[role]}' || true").split()
                found[name] = [int(pid) for pid in pids]
        return {name: pids for name, pids in found.items() if pids}

    def machine_of(self, role: str) -> Machine:
        [name] = self.processes(role)
        return self.machines[name]

    @property
    def _head(self) -> Machine:
        return self.machines["head"]

    def url(self, name: str) -> str:
        return f"http://{self.machines[name].address}:{PORT}"

    def is_ready(self) -> bool:
        return all(self.state(name) == "ready" for name in FRONTS)

    def state(self, name: str) -> str:
        """Return what /ready says of the service through a machine: ready, degraded or ""."""
        headers = {"authorization": f"Bearer {self.api_key}"}
        try:
            url = f"{self.url(name)}/ready"
            reply = httpx2.get(url, headers=headers, timeout=2.0, trust_env=False)
            return str(reply.json().get("status", ""))
        except (httpx2.HTTPError, ValueError):
            return ""

    def _application(self, num_ranks: int) -> dict[str, Any]:
        def placed(role: str, **more: object) -> dict[str, Any]:
            return {"num_cpus": 1, "node": {"labels": {_LABEL: role}}, **more}

        ranks: dict[str, Any] = {}
        if num_ranks > 1:  # no machine has CPUs for two
            ranks = {"tensor_parallel": num_ranks, "spans_nodes": True, "num_cpus": 2.5}
        pipeline = {
            "engine": {
                "preset": "tiny",
                "target": {"device": "cpu", "max_sequences": 4},
                "drafter": {"device": "cpu"},
            },
            "placement": {
                "coordinator": placed("coordinator"),
                "drafter": placed("drafter"),
                "verifier": placed("in(verifier,coordinator)", **ranks),
            },
            "deadlines": {"draft_seconds": 2},
        }
        beside = {"label_selector": {_LABEL: "coordinator"}}
        deployments: Sequence[dict[str, Any]] = [
            {
                "name": "Ingress",
                "num_replicas": 2,
                "max_replicas_per_node": 1,
                "ray_actor_options": {"num_cpus": 1, **beside},
            },
            {"name": "Directory", "ray_actor_options": {"num_cpus": 0, **beside}},
        ]
        arguments = {"pipeline": pipeline, "http": {"api_keys": f"{HOME}/keys.yaml"}}
        application = {
            "name": "diffuspec",
            "route_prefix": "/",
            "import_path": "deploy.app:build",
            "args": arguments,
            "deployments": deployments,
        }
        return {
            "proxy_location": "EveryNode",
            "http_options": {"host": "0.0.0.0", "port": PORT},
            "applications": [application],
        }
