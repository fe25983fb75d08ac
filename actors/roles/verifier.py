"""One rank of the verifier: a shard of the target, and on rank 0 the gRPC service over all shards.

A plain class, which runs in a Ray actor or in a process of its own. With one rank there is no group
to join. Blocking work runs in threads, so that the service answers during a step. status() does not
block and may be called from the event loop of any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import psutil

from actors.roles.hosted_drafters import hosted_drafters
from actors.roles.watched_verifier import WatchedVerifier
from actors.settings import PipelineConfig
from actors.supervision.background import first_of
from diffuspec.core.addresses import LOOPBACK
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import VerifierServicer

if TYPE_CHECKING:
    from diffuspec.models.target import CausalTarget
    from diffuspec.models.tensor_parallel.lockstep import LockstepTarget
    from diffuspec.models.tensor_parallel.rank_group import RankGroup, RankLimits

P = ParamSpec("P")
T = TypeVar("T")

# a rank that gets no message for this long ends, unless its supervisor ends it first
_MIN_WORD_SECONDS = 60.0
_IDLE_SHARE = 0.25  # pause between rank 0's messages, as a share of _MIN_WORD_SECONDS
_FOLLOW_SECONDS = 2.0  # time for the last message of rank 0 to arrive


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The state of a rank that answers."""

    pid: int
    num_steps: int  # steps verified so far, counted by rank 0
    step_seconds: float  # age of the oldest running step; 0 if none runs


class VerifierRank:
    """One rank. Call meet() on rank 0 if there are several, start() on all at once, then run()."""

    def __init__(self, config: PipelineConfig, security: Security, rank: int = 0) -> None:
        self._config = config
        self._security = security
        self._rank = rank
        self._num_ranks = config.placement.verifier.tensor_parallel
        self._store: Any = None
        self._group: RankGroup | None = None
        self._steps: WatchedVerifier | None = None
        self._work: asyncio.Task[None] | None = None
        self._resources = contextlib.AsyncExitStack()
        if self._num_ranks > 1:
            _set_environment(on_gpu=config.placement.verifier.num_gpus > 0)
            if not config.placement.verifier.spans_nodes:
                _use_interface("lo")

    async def meet(self, address: str = LOOPBACK) -> str:
        """Open the meeting point of the ranks on this node; return it as "host:port".

        address: one of this node's, used only if the ranks may be on several nodes.
        """
        from diffuspec.models.tensor_parallel.rank_group import open_meeting_point

        host = address if self._config.placement.verifier.spans_nodes else LOOPBACK
        self._store = open_meeting_point(host, self._limits())
        return f"{host}:{self._store.port}"

    async def start(self, meeting_point: str, host: str, port: int = 0) -> str:
        """Load this rank's shard. Rank 0 also runs a self-test, serves, and returns its address.

        meeting_point: as meet() returned it, "" for a single rank. Raises ConfigError,
        ModelLoadError, and VerifierUnavailableError when the ranks do not all connect.
        """
        if self._rank == 0:
            # raises on a bad configuration before weights are loaded
            self._security.server_credentials(host)
        target = await _in_daemon_thread(self._load, meeting_point)
        self._resources.callback(target.close)
        if self._rank > 0:
            self._work = asyncio.create_task(self._follow(target))
            return ""
        leader = self._lead(target)
        self._steps = steps = WatchedVerifier(leader or target)
        watches = [steps.watch()] if leader is None else [steps.watch(), leader.watch()]
        self._work = asyncio.create_task(first_of(*watches))
        await steps.test()
        limits = self._config.limits(self._config.deadlines.verify_seconds)
        hosted = await self._resources.enter_async_context(
            hosted_drafters(self._config, self._security, leader or target, host)
        )
        servicer = VerifierServicer(steps, hosted)
        server = RoleServer([servicer], self._security, host, port, limits)
        await self._resources.enter_async_context(server)
        await self._resources.enter_async_context(servicer.health.checked_when_idle(steps.test))
        return server.address

    async def run(self) -> None:
        """Run until this rank is stopped.

        Raises VerifierUnavailableError when it can no longer work: another rank is lost, or every
        step fails.
        """
        assert self._work is not None, "start() comes first"
        await asyncio.wait([self._work])
        if not self._work.cancelled():
            self._work.result()

    async def status(self) -> RankStatus:
        """Return the state without waiting. May be called from the event loop of any thread."""
        steps = self._steps
        if steps is None:
            return RankStatus(os.getpid(), 0, 0.0)
        return RankStatus(os.getpid(), steps.num_steps, steps.oldest_seconds)

    async def stop(self) -> None:
        """Finish the running steps, end the server, and release the other ranks."""
        if self._rank == 0 and self._work is not None:
            self._work.cancel()
        elif self._work is not None:
            await asyncio.wait([self._work], timeout=_FOLLOW_SECONDS)
            if not self._work.done():
                # one of its threads still waits for rank 0, and only the end of the process ends
                # that
                return
        await self._resources.aclose()
        self._store = self._group = None

    def _load(self, meeting_point: str) -> CausalTarget:
        from diffuspec.models.target import CausalTarget  # imports torch
        from diffuspec.text.grammars import grammars_of

        if self._num_ranks > 1:
            self._group = self._join(meeting_point)
            self._resources.callback(self._group.close)
        config = self._config.engine.target
        with self._group.loading() if self._group else contextlib.nullcontext():
            target = CausalTarget.load(config, self._num_ranks)
        # done now, since later all requests would wait for it
        grammars_of(config.path, target.info).prepare()
        return target

    def _join(self, meeting_point: str) -> RankGroup:
        import torch

        from diffuspec.models.tensor_parallel.rank_group import RankGroup, find_meeting_point

        limits = self._limits()
        host, _, port = meeting_point.rpartition(":")
        if self._config.placement.verifier.spans_nodes:
            _use_interface(_interface_towards(host))
        store = self._store or find_meeting_point(host, int(port), limits)
        has_gpu = self._config.placement.verifier.num_gpus > 0
        device = torch.device("cuda", 0) if has_gpu else torch.device("cpu")
        return RankGroup(store, self._rank, self._num_ranks, device, limits)

    def _lead(self, target: CausalTarget) -> LockstepTarget | None:
        """Return the target that runs in step with the other ranks; None without others."""
        if self._group is None:
            return None
        from diffuspec.models.tensor_parallel.lockstep import LockstepTarget

        idle_seconds = _IDLE_SHARE * self._limits().message_seconds
        leader = LockstepTarget(target, self._group, idle_seconds)
        self._resources.push_async_callback(leader.close)
        return leader

    async def _follow(self, target: CausalTarget) -> None:
        from diffuspec.models.tensor_parallel.lockstep import follow

        assert self._group is not None
        await _in_daemon_thread(follow, target, self._group)

    def _limits(self) -> RankLimits:
        from diffuspec.models.tensor_parallel.rank_group import RankLimits

        deadlines = self._config.deadlines
        return RankLimits(
            # shorter than the supervisor's limit, since a rank names the others that are missing
            meet_seconds=deadlines.start_seconds / 2,
            compute_seconds=deadlines.start_seconds,
            message_seconds=max(deadlines.verify_seconds, _MIN_WORD_SECONDS),
        )


async def _in_daemon_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a daemon thread.

    The threads of asyncio.to_thread would keep the process from ending, because ranks wait long for
    each other.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # cancelling the caller does not stop the thread

    def run() -> None:
        try:
            outcome.set_result(work(*args, **kwargs))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="rank", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _set_environment(on_gpu: bool) -> None:
    """Set the variables from which torch and transformers learn a rank's device."""
    os.environ["LOCAL_RANK"] = "0"  # each rank sees only its own GPU, which is number 0
    if not on_gpu:
        # otherwise weights would be placed on a visible GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _interface_towards(host: str) -> str:
    """Return the network interface by which this machine reaches a host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 1))  # sends nothing
        own: str = probe.getsockname()[0]
    interfaces: dict[str, Any] = psutil.net_if_addrs()
    return next(name for name in interfaces if any(at.address == own for at in interfaces[name]))


def _use_interface(name: str) -> None:
    """Have the ranks, whose connections check no token, listen on one network interface."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # "=" matches this name exactly
