"""The placement of a pipeline: one placement group, and the actors in its bundles.

Plain classes become Ray actors here and nowhere else; each is imported when one is created, since
every actor imports this module. A Placement can be sent to other processes:
the coordinator uses it to create the verifier's ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.bundles import Node, explain_shortage, find_shortages, make_bundles
from actors.placement_settings import RoleSettings
from actors.settings import DrafterProcess, PipelineConfig
from diffuspec.core.addresses import LOOPBACK
from diffuspec.core.errors import ConfigError, DiffuspecError
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.rpc.security import Security
from diffuspec.telemetry import logs
from diffuspec.telemetry.trace import numbered

logger = logging.getLogger(__name__)

Handle: TypeAlias = Any  # a Ray actor: its methods have .remote()

CONTROL = "control"  # concurrency group of health checks, which must not queue behind work

_COORDINATOR_BUNDLE = 0
_NUM_CONTROL_CALLS = 4
_PATIENCE_SECONDS = 3  # pause between log messages on missing resources; Ray waits whole seconds
_RELEASE_SECONDS, _POLL_SECONDS = 10.0, 0.05


class PlacementError(DiffuspecError):
    """The cluster has no room for the pipeline, or its nodes cannot serve it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The node and process of an actor."""

    node_id: str
    ip: str
    gpu_ids: tuple[str, ...]  # numbers, or names as in CUDA_VISIBLE_DEVICES
    pid: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A granted placement group, with all that is needed to create its actors."""

    config: PipelineConfig
    token: str = field(repr=False)
    group: PlacementGroup
    name: str = ""  # the pipeline's name

    @classmethod
    async def reserve(cls, config: PipelineConfig, token: str, name: str = "") -> Placement:
        """Wait until the cluster grants the bundles; log which resources are missing meanwhile.

        Raises ConfigError, and after placement_seconds PlacementError with the missing resources.
        Nothing stays reserved after an error.
        """
        group = _ask_for(config)
        try:
            await _granted(group, config)
            if config.rpc.tls is None:
                _check_one_machine(group)
        except BaseException:
            remove_placement_group(group)
            raise
        return cls(config, token, group, name)

    async def release(self) -> None:
        """Release the bundles and end the actors in them; return once that is done."""
        remove_placement_group(self.group)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                while not await asyncio.to_thread(self.is_removed):
                    await asyncio.sleep(_POLL_SECONDS)

    def is_removed(self) -> bool:
        """Return whether the placement group is gone. Asks the cluster's head node."""
        table: Any = ray.util.placement_group_table(self.group)
        return bool(table["state"] == "REMOVED")

    def host(self, place: Place) -> str:
        """Return the address at which an actor listens: with TLS its node's, else loopback."""
        return LOOPBACK if self.config.rpc.tls is None else place.ip

    def create_coordinator(self, number: int = 1) -> Handle:
        """Create a coordinator. `number` counts from 1, and is part of its trace's name."""
        from actors.roles.coordinator import CoordinatorActor

        config, role = self.config, self.config.placement.coordinator
        if config.trace is not None and number > 1:
            config = config.model_copy(update={"trace": numbered(config.trace, number)})
            logger.warning("the trace continues in %s", config.trace)
        variables = _threads(role)
        if config.placement.together:  # else its ranks would inherit what hides GPUs from it
            variables |= _gpus(role)
        make = self._remote(CoordinatorActor, role, _COORDINATOR_BUNDLE, variables)
        return make(config, self.token)

    def create_drafter(self, process: DrafterProcess) -> Handle:
        from actors.roles.drafter import DrafterActor

        role = process.settings
        make = self._remote(DrafterActor, role, 1 + process.index, _threads(role) | _gpus(role))
        return make(self.config, self.token, process.drafter)

    def create_path_scorer(self, process: DrafterProcess) -> Handle:
        from actors.roles.path_scorer import PathScorerActor

        role = self.config.placement.path_scorer
        make = self._remote(PathScorerActor, role, 1 + process.index, _threads(role) | _gpus(role))
        return make(self.config, self.token)

    def create_rank(self, rank: int) -> Handle:
        from actors.roles.verifier import VerifierRank

        role = self.config.placement.verifier
        bundle = 1 + len(self.config.drafter_processes)
        make = self._remote(VerifierRank, role, bundle, _threads(role) | _gpus(role))
        return make(self.config, self.token, rank)

    def _remote(
        self, kind: type[Any], role: RoleSettings, bundle: int, variables: dict[str, str]
    ) -> Callable[..., Handle]:
        """Return a function that creates an actor of a plain class in a bundle.

        Ray does not restart these actors; their supervisors do, and pass on the new addresses.
        """
        strategy = PlacementGroupSchedulingStrategy(
            self.group, bundle, placement_group_capture_child_tasks=False
        )
        return _remote_role(kind, role, variables, scheduling_strategy=strategy)


def create_draft_server(
    config: DraftServerConfig, security: Security, role: RoleSettings, **options: object
) -> Handle:
    """Create an actor that serves drafts outside any pipeline. `options`: those of Ray."""
    from actors.roles.draft_server import DraftServerActor

    variables = _threads(role) | _gpus(role)
    return _remote_role(DraftServerActor, role, variables, **options)(config, security)


def _remote_role(
    kind: type[Any], role: RoleSettings, variables: dict[str, str], **options: object
) -> Callable[..., Handle]:
    """Return a function that creates an actor of a plain class, which Ray does not restart."""
    make_actor_class: Any = ray.remote  # Ray's type annotations lack concurrency groups
    actor_class = make_actor_class(
        num_cpus=role.num_cpus,
        num_gpus=role.num_gpus,
        max_restarts=0,
        max_task_retries=0,
        concurrency_groups={CONTROL: _NUM_CONTROL_CALLS},
    )(kind)
    prepared = actor_class.options(runtime_env={"env_vars": variables | _telemetry()}, **options)

    def create(*arguments: object) -> Handle:
        handle = prepared.remote(*arguments)
        handle.__ray_call__.options(concurrency_group=CONTROL).remote(_configure_logs)
        return handle

    return create


def _threads(role: RoleSettings) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(role.num_threads),
        "TOKENIZERS_PARALLELISM": "false",
        # With these a message wakes two gRPC threads on its way; otherwise four.
        "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
    }


def _telemetry() -> dict[str, str]:
    """Return this process's environment variables for logs and traces, which all roles inherit."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("OTEL_", "DIFFUSPEC_LOG_"))
    }


def _configure_logs(actor: object) -> None:
    logs.configure(level="warning")


def _gpus(role: RoleSettings) -> dict[str, str]:
    """Return variables that hide all GPUs from a role without one; Ray would leave them visible."""
    return {} if role.num_gpus else {"CUDA_VISIBLE_DEVICES": ""}


async def locate(actor: Handle) -> Place:
    """Wait until an actor runs; return its node and process."""
    place: Place = await actor.__ray_call__.options(concurrency_group=CONTROL).remote(_find_place)
    return place


def _find_place(actor: object) -> Place:
    node_id: str = ray.get_runtime_context().get_node_id()
    gpu_ids = tuple(map(str, ray.get_gpu_ids()))
    ip: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return Place(node_id, ip, gpu_ids, os.getpid())


def check_room(config: PipelineConfig, num_pipelines: int = 1) -> None:
    """Raise PlacementError if the cluster, even idle, cannot hold `num_pipelines` pipelines."""
    bundles, strategy = make_bundles(config), config.placement.strategy
    reasons = find_shortages(bundles, strategy, _nodes_alive(), num_pipelines)
    if reasons:
        raise PlacementError("; ".join(reasons))


def _ask_for(config: PipelineConfig) -> PlacementGroup:
    bundles = make_bundles(config)
    try:
        group: PlacementGroup = placement_group(
            [bundle.resources for bundle in bundles],
            strategy=config.placement.strategy,
            bundle_label_selector=[bundle.labels for bundle in bundles],
        )
    except ValueError as error:
        raise ConfigError(f"Ray cannot place the pipeline: {error}") from error
    return group


async def _granted(group: PlacementGroup, config: PipelineConfig) -> None:
    """Wait until a group is granted; log the missing resources whenever they change."""
    bundles, strategy = make_bundles(config), config.placement.strategy
    seconds, told = config.deadlines.placement_seconds, ""
    ends_at = time.monotonic() + seconds
    while (left := ends_at - time.monotonic()) > 0:
        if await asyncio.to_thread(group.wait, math.ceil(min(left, _PATIENCE_SECONDS))):
            return
        reason = "; ".join(explain_shortage(bundles, strategy, _nodes_alive()))
        if reason != told:
            logger.warning("no room for the pipeline, waiting up to %g s: %s", seconds, reason)
            told = reason
    raise PlacementError(f"no room for the pipeline within {seconds:g} seconds: {told}")


def _check_one_machine(group: PlacementGroup) -> None:
    table: Any = ray.util.placement_group_table(group)
    ips = {node["NodeID"]: node["NodeManagerAddress"] for node in _nodes()}
    used = sorted({ips[node_id] for node_id in table["bundles_to_node_id"].values()})
    if len(used) > 1:
        raise ConfigError(
            f"the roles would run on several machines ({', '.join(used)}), and rpc.tls is not "
            "configured: give certificates, or STRICT_PACK them on one"
        )


def _nodes_alive() -> list[Node]:
    return [Node(node["Resources"], node["Labels"]) for node in _nodes() if node["Alive"]]


def _nodes() -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes
