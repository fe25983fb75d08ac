"""The placement of a pipeline: its placement groups, and the actors in their bundles.

Plain classes become Ray actors here and nowhere else; each is imported when one is created, since
every actor imports this module. A Placement can be sent to other processes:
the coordinator uses it to create the verifier's ranks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.bundles import (
    COORDINATOR,
    VERIFIER,
    Group,
    Node,
    explain_shortage,
    find_shortages,
    make_groups,
)
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

ONE_MACHINE = {"diffuspec-cluster": "own"}  # labels of nodes: no other machine can join
CONTROL = "control"  # concurrency group of health checks, which must not queue behind work

_NODE_LABEL = "ray.io/node-id"
_NUM_CONTROL_CALLS = 4
_PATIENCE_SECONDS = 1  # pause between looks at what is missing; Ray waits whole seconds
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
    """A pipeline's placement groups, with all that is needed to create its actors.

    Those of coordinator and verifier are granted at first; a drafter's may come later, or never.
    """

    config: PipelineConfig
    security: Security
    groups: tuple[tuple[Group, PlacementGroup], ...]
    name: str = ""  # the pipeline's name
    has_home: bool = False  # whether the first group belongs to the process that starts the roles

    @classmethod
    async def reserve(
        cls,
        config: PipelineConfig,
        security: Security,
        name: str = "",
        home: PlacementGroup | None = None,
    ) -> Placement:
        """Wait until the cluster grants what coordinator and verifier need.

        home: a granted group with the bundles of the first of `make_groups`. Logs which resources
        are missing meanwhile. Raises ConfigError, and after placement_seconds PlacementError with
        the missing resources. Nothing stays reserved after an error.
        """
        placement = cls(config, security, (), name, home is not None)
        seconds, missing = config.deadlines.placement_seconds, ""

        def tell(reason: str) -> None:
            nonlocal missing
            missing = reason
            logger.warning("no room for the pipeline, waiting up to %g s: %s", seconds, reason)

        try:
            async with asyncio.timeout(seconds):
                for group in make_groups(config):
                    placement = await placement._with(group, home, tell)
                    home = None
                for role in placement._needed:
                    await placement.has_room(role, tell)
        except BaseException as error:
            placement._remove()
            if isinstance(error, TimeoutError):
                groups = [group for group, _ in placement.groups]
                missing = missing or "; ".join(explain_shortage(groups, _nodes_alive()))
                late = f"no room for the pipeline within {seconds:g} seconds: {missing}"
                raise PlacementError(late) from error
            raise
        return placement

    async def _with(
        self, group: Group, home: PlacementGroup | None, tell: Callable[[str], None]
    ) -> Placement:
        """Ask for one more group; where roles have to be apart, wait until the last is granted."""
        if self.groups and self.config.placement.strategy == "STRICT_SPREAD":
            last, _ = self.groups[-1]
            await self.has_room(last.bundles[0].role, tell)
            used = [node for _, granted in self.groups for node in _node_ids(granted)]
            group = group.with_labels({_NODE_LABEL: f"!in({','.join(used)})"})
        asked = home or _ask_for(group)
        return replace(self, groups=(*self.groups, (group, asked)))

    async def has_room(self, role: str, tell: Callable[[str], None]) -> None:
        """Wait until the group of a role is granted; call `tell` whenever the reason changes."""
        group, granted, _ = self._find(role)
        told = ""
        while not await asyncio.to_thread(granted.wait, _PATIENCE_SECONDS):
            reason = "; ".join(explain_shortage([group], _nodes_alive()))
            if reason != told:
                tell(reason)
                told = reason

    async def release(self) -> None:
        """Release the bundles and end the actors in them; return once that is done."""
        self._remove()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                while not all(await asyncio.gather(*map(_is_removed, self._own))):
                    await asyncio.sleep(_POLL_SECONDS)

    async def is_lost(self) -> bool:
        """Return whether a group that cannot be missed was removed. Asks the head node."""
        needed = [self._find(role)[1] for role in self._needed]
        return any(await asyncio.gather(*map(_is_removed, needed)))

    @property
    def _needed(self) -> tuple[str, ...]:
        return (COORDINATOR,) if self.config.placement.together else (COORDINATOR, VERIFIER)

    @property
    def _own(self) -> list[PlacementGroup]:
        return [group for _, group in self.groups[self.has_home :]]

    def _remove(self) -> None:
        for group in self._own:
            remove_placement_group(group)

    def _find(self, role: str, number: int = 0) -> tuple[Group, PlacementGroup, int]:
        """Return the group of a role, and the index of its bundle of this number."""
        places = (
            (group, granted, index)
            for group, granted in self.groups
            for index, bundle in enumerate(group.bundles)
            if bundle.role == role
        )
        return [*places][number]

    def host(self, place: Place) -> str:
        """Return the address at which an actor listens: with TLS its node's, else loopback."""
        return LOOPBACK if self.security.tls is None else place.ip

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
        make = self._remote(CoordinatorActor, role, COORDINATOR, variables)
        return make(config, self.security)

    def create_drafter(self, process: DrafterProcess) -> Handle:
        from actors.roles.drafter import DrafterActor

        role = process.settings
        make = self._remote(DrafterActor, role, process.role, _threads(role) | _gpus(role))
        return make(self.config, self.security, process.drafter)

    def create_path_scorer(self, process: DrafterProcess) -> Handle:
        from actors.roles.path_scorer import PathScorerActor

        role = self.config.placement.path_scorer
        make = self._remote(PathScorerActor, role, process.role, _threads(role) | _gpus(role))
        return make(self.config, self.security)

    def create_rank(self, rank: int) -> Handle:
        from actors.roles.verifier import VerifierRank

        role = self.config.placement.verifier
        variables = _threads(role) | _gpus(role)
        make = self._remote(VerifierRank, role, VERIFIER, variables, rank)
        return make(self.config, self.security, rank)

    def _remote(
        self,
        kind: type[Any],
        role: RoleSettings,
        name: str,
        variables: dict[str, str],
        number: int = 0,
    ) -> Callable[..., Handle]:
        """Return a function that creates an actor of a plain class in a bundle of a role.

        Ray does not restart these actors; their supervisors do, and pass on the new addresses.
        """
        _, group, bundle = self._find(name, number)
        strategy = PlacementGroupSchedulingStrategy(
            group, bundle, placement_group_capture_child_tasks=False
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
        "OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"],  # see diffuspec/__init__.py
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


def is_on_one_machine() -> bool:
    """Return whether this process is connected to a cluster that a command has started for itself.

    Such a cluster never grows.
    """
    return set(ONE_MACHINE.items()) <= set(ray.get_runtime_context().get_node_labels().items())


def check_room(config: PipelineConfig, num_pipelines: int = 1) -> None:
    """Raise PlacementError if the cluster, even idle, cannot hold `num_pipelines` pipelines."""
    reasons = find_shortages(make_groups(config), _nodes_alive(), num_pipelines)
    if reasons:
        raise PlacementError("; ".join(reasons))


def _ask_for(group: Group) -> PlacementGroup:
    try:
        asked: PlacementGroup = placement_group(
            [bundle.resources for bundle in group.bundles],
            strategy=group.strategy,
            bundle_label_selector=[bundle.labels for bundle in group.bundles],
        )
    except ValueError as error:
        raise ConfigError(f"Ray cannot place the pipeline: {error}") from error
    return asked


def _node_ids(group: PlacementGroup) -> list[str]:
    table: Any = ray.util.placement_group_table(group)
    return [*table["bundles_to_node_id"].values()]


async def _is_removed(group: PlacementGroup) -> bool:
    table: Any = await asyncio.to_thread(ray.util.placement_group_table, group)
    return bool(table["state"] == "REMOVED")


def _nodes_alive() -> list[Node]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [Node(node["Resources"], node["Labels"]) for node in nodes if node["Alive"]]
