"""Where the actors of a pipeline are: their places and addresses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError

from actors.placement import CONTROL, Handle, Place, locate
from actors.roles.coordinator import CoordinatorActor
from actors.supervision.coordinator_supervisor import CoordinatorSupervisor
from actors.supervision.drafter_supervisor import DrafterSupervisor
from actors.supervision.role_actor import RoleActor
from actors.supervision.verifier_group import SupervisedVerifier

logger = logging.getLogger(__name__)

_NAMING_SECONDS = 10.0  # time for the coordinator to list the verifier's ranks


@dataclass(frozen=True, slots=True)
class RoleReport:
    """An actor's place and address, or the reason why it is not serving."""

    name: str
    place: Place | None
    address: str
    reason: str = ""


async def describe_roles(
    coordinator: CoordinatorSupervisor, drafters: Sequence[DrafterSupervisor]
) -> tuple[RoleReport, ...]:
    """Return the place and address of every actor."""
    actor = coordinator.actor
    reports = [_report("coordinator", actor, coordinator.address, coordinator.problem)]
    for one in drafters:
        roles = [(one.name, one.drafter)]
        if one.process.needs_path_scorer:
            roles.append((one.scorer_name, one.scorer))
        for name, role in roles:
            reports.append(_report(name, role, role.ready if role else "", one.problem))
    if actor is not None:
        reports += await _describe_ranks(actor)
    return tuple(reports)


def _report(name: str, actor: RoleActor[Any] | None, address: str, reason: str) -> RoleReport:
    return RoleReport(name, actor.place if actor is not None else None, address, reason)


async def _describe_ranks(coordinator: RoleActor[Any]) -> list[RoleReport]:
    """Return the places and addresses of the verifier's ranks; none during a replacement."""
    try:
        async with asyncio.timeout(_NAMING_SECONDS):
            call = coordinator.handle.__ray_call__.options(concurrency_group=CONTROL)
            handles, address = await call.remote(_ranks)
            places = await asyncio.gather(*map(locate, handles))
    except (TimeoutError, RayError) as error:
        logger.warning("the coordinator did not name the verifier's ranks: %s", error)
        return []
    addresses = [address, *("" for _ in places)]  # rank 0 serves for all ranks
    named = enumerate(zip(places, addresses, strict=False))
    return [RoleReport(f"verifier rank {i}", *there) for i, there in named]


def _ranks(coordinator: CoordinatorActor) -> tuple[list[Handle], str]:
    """Return all ranks and the address of rank 0. Runs in the coordinator's process.

    There are none if the target is in this process.
    """
    verifier = coordinator.verifier
    ranks = verifier.group.ranks if isinstance(verifier, SupervisedVerifier) else None
    return (list(ranks.handles), ranks.address) if ranks is not None else ([], "")
