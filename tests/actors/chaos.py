"""Injected faults: processes and nodes of a pipeline are killed, stopped, paused and slowed down.

Besides, all steps of the verifier fail. The order is random with a seed; a fault may come before
the pipeline has recovered from the last one.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from ray._private.node import Node as RayNode
from ray.cluster_utils import Cluster
from ray.exceptions import RayError

from actors.pipeline import Pipeline
from actors.placement import CONTROL
from actors.role_reports import RoleReport
from actors.roles.coordinator import CoordinatorActor
from actors.roles.verifier import VerifierRank
from actors.supervision.verifier_group import SupervisedVerifier
from benchmarks.recoveries import Recovery, Tokens
from diffuspec.core.errors import VerifierError
from tests.support.ray_cluster import NODE

Action = Literal["kill", "stop", "pause", "delay", "failing steps of"]

TOKENS_BETWEEN_FAULTS = (10, 50)
CALM = 0.4  # how often a fault may heal before the next one
MAX_RECOVERY_SECONDS = 300.0  # from a fault, with others after it, until all roles serve
MAX_PAUSE_SECONDS, MAX_DELAY_SECONDS = 1.5, 3.0
MAX_SECONDS_WITHOUT_NODE = 2.0
SLICE_SECONDS = (0.08, 0.02)  # stopped, running: one that is slowed down
LABEL = "diffuspec-role"
NODES = ("drafter", "verifier")
VERIFIER = "the verifier"  # all ranks of it


@dataclass(frozen=True)
class Fault:
    action: Action
    victim: str  # a role's name, "a role's node", or VERIFIER

    def __str__(self) -> str:
        return f"{self.action} {self.victim}"


def faults(num_ranks: int) -> list[Fault]:
    """Return every kind of fault once."""
    roles = ["drafter 0", "path scorer 0", *(f"verifier rank {i}" for i in range(num_ranks))]
    actions: tuple[Action, ...] = ("kill", "stop", "pause", "delay")
    found = [Fault(action, role) for action in actions for role in roles]
    actions = ("kill", "stop", "delay")
    found += [Fault(action, f"{role}'s node") for action in actions for role in NODES]
    found += [Fault("kill", "coordinator"), Fault("stop", "coordinator")]
    return [*found, Fault("failing steps of", VERIFIER)]


def fail_every_step(rank: VerifierRank) -> None:
    """Fail like a GPU after an illegal memory access. Runs in the process of a rank."""
    from diffuspec.models.target import CausalTarget

    def fail(target: CausalTarget, requests: object, admitted: object) -> NoReturn:
        raise VerifierError("an illegal memory access was encountered")

    CausalTarget.verify_here = fail  # type: ignore[assignment]


def break_verifier(coordinator: CoordinatorActor) -> None:
    """Make every step of the current ranks fail. Runs in the coordinator's process."""
    assert isinstance(coordinator.verifier, SupervisedVerifier)
    ranks = coordinator.verifier.group.ranks
    for handle in ranks.handles if ranks is not None else ():
        handle.__ray_call__.options(concurrency_group=CONTROL).remote(fail_every_step)


class Nodes:
    """A node for the drafter and one for the verifier, besides the head; lost ones are replaced."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._present: dict[str, RayNode] = {}
        self._all: list[RayNode] = []

    async def __aenter__(self) -> Self:
        for role in NODES:
            self.add(role)
        return self

    async def __aexit__(self, *_: object) -> None:
        for node in self._all:
            await asyncio.to_thread(self._cluster.remove_node, node, allow_graceful=False)

    def node_id(self, role: str) -> str:
        return str(self._present[role].node_id)

    def pid(self, role: str) -> int:
        """Return the process of the node's raylet, with which the node ends."""
        processes: dict[str, Any] = self._present[role].all_processes
        return int(processes["raylet"][0].process.pid)

    def add(self, role: str) -> None:
        """Not in a thread: Ray sets signal handlers."""
        node = self._cluster.add_node(wait=False, num_cpus=2, labels={LABEL: role}, **NODE)
        self._present[role] = node
        self._all.append(node)


class Chaos:
    """Injects faults while its context is open; then every role must serve again."""

    def __init__(
        self, pipeline: Pipeline, nodes: Nodes, tokens: Tokens, rng: random.Random, num_ranks: int
    ) -> None:
        self.recoveries: list[Recovery] = []
        self.pids: set[int] = set()  # of all processes seen
        self._pipeline, self._nodes, self._tokens, self._rng = pipeline, nodes, tokens, rng
        self._deck = rng.sample(deck := faults(num_ranks), len(deck))
        self._num_roles = 3 + num_ranks
        self._stopped: set[int] = set()

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        agent = asyncio.create_task(self._run())
        try:
            yield
            self._tokens.is_over = True
            await agent
        finally:
            agent.cancel()
            self._clean_up()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as healing:
            for fault in itertools.cycle(self._deck):
                if not await self._tokens.more(self._rng.randint(*TOKENS_BETWEEN_FAULTS)):
                    return
                began = time.monotonic()
                doomed = await self._harm(fault)
                recovery = healing.create_task(self._heal(fault, began, doomed))
                if self._rng.random() < CALM:
                    await recovery

    async def _harm(self, fault: Fault) -> set[int]:
        """Inject a fault; return the processes that have to be replaced."""
        role = fault.victim.removesuffix("'s node")
        if fault.victim == VERIFIER:
            return await self._break_verifier()
        if role == fault.victim:
            victims = [await self._find(role)]
            await self._signal(fault.action, victims[0])
        else:
            victims = await self._found_on(self._nodes.node_id(role))
            await self._harm_node(fault.action, role)
        return set(victims) if fault.action in ("kill", "stop") else set()

    async def _break_verifier(self) -> set[int]:
        await self._find("verifier rank 0")
        ranks = [one for one in await self._present() if one.name.startswith("verifier rank")]
        if (coordinator := self._pipeline.coordinator.actor) is not None:
            with contextlib.suppress(RayError):  # it is lost too
                call = coordinator.handle.__ray_call__.options(concurrency_group=CONTROL)
                await call.remote(break_verifier)
        return {one.place.pid for one in ranks if one.place is not None}

    async def _harm_node(self, action: Action, role: str) -> None:
        """Replace a lost node by one that was added before or is added after a pause."""
        pid = self._nodes.pid(role)
        is_lost, has_spare = action in ("kill", "stop"), self._rng.random() < 0.5
        if is_lost and has_spare:
            self._nodes.add(role)
        await self._signal(action, pid)
        if is_lost and not has_spare:
            await asyncio.sleep(self._rng.uniform(0, MAX_SECONDS_WITHOUT_NODE))
            self._nodes.add(role)

    async def _signal(self, action: Action, pid: int) -> None:
        if action == "stop":
            self._stopped.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
            if action == "pause":
                await asyncio.sleep(self._rng.uniform(0.1, MAX_PAUSE_SECONDS))
                os.kill(pid, signal.SIGCONT)
            elif action == "delay":
                await self._slow_down(pid, self._rng.uniform(1.0, MAX_DELAY_SECONDS))

    def _clean_up(self) -> None:
        """Kill the stopped processes, which would have ended with a real machine."""
        for pid in self._stopped:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::"):
                    os.kill(pid, signal.SIGKILL)

    async def _slow_down(self, pid: int, seconds: float) -> None:
        stopped, running = SLICE_SECONDS
        for _ in range(round(seconds / (stopped + running))):
            await asyncio.sleep(stopped)
            os.kill(pid, signal.SIGCONT)
            await asyncio.sleep(running)
            os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)

    async def _heal(self, fault: Fault, began: float, doomed: Collection[int]) -> None:
        async with asyncio.timeout(MAX_RECOVERY_SECONDS):
            while not await self._is_whole(doomed):
                await asyncio.sleep(0.1)
        self.recoveries.append(Recovery(str(fault), began, time.monotonic()))

    async def _is_whole(self, doomed: Collection[int]) -> bool:
        """Return whether every role serves, none of them in one of these processes."""
        pids = [report.place.pid for report in await self._present()]
        if len(pids) < self._num_roles or not set(pids).isdisjoint(doomed):
            return False
        return not (await self._pipeline.status()).degraded_reasons

    async def _present(self) -> list[RoleReport]:
        reports = [one for one in await self._pipeline.describe() if one.place is not None]
        self.pids |= {one.place.pid for one in reports if one.place is not None}
        return reports

    async def _find(self, role: str) -> int:
        """Wait for a role to have a process; return it."""
        async with asyncio.timeout(MAX_RECOVERY_SECONDS):
            while True:
                for report in await self._present():
                    if report.name == role and report.place is not None:
                        return report.place.pid
                await asyncio.sleep(0.1)

    async def _found_on(self, node_id: str) -> list[int]:
        places = [report.place for report in await self._present()]
        return [place.pid for place in places if place is not None and place.node_id == node_id]


async def gone(pids: Collection[int]) -> None:
    """Wait until none of these processes exists."""
    async with asyncio.timeout(30):
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            await asyncio.sleep(0.1)
