"""The drafters of a coordinator: which are in use, where they run, and why others are not.

A drafter with its own process can connect and leave at any time. A drafter without a model is
loaded into the coordinator's process, where a draft takes less time than a message; so is every
drafter of a pipeline whose roles run together. Otherwise a drafter that observes the target runs in
the target's process: its lane in the pool notices its loss, and tries it again. A missing drafter
costs speed, never an answer.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from actors.roles import self_test
from actors.roles.hosted_drafters import DrafterBesideVerifier, DrafterHost
from actors.settings import PipelineConfig
from actors.supervision.background import log_problem
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import Drafter, ObservableVerifier, RoleStatus, TargetInfo
from diffuspec.drafters import LocalDrafter, Target, load_drafter
from diffuspec.rpc.client.roles import RemoteDrafter
from diffuspec.rpc.security import Security
from diffuspec.scheduler.calls import UNNAMED
from diffuspec.scheduler.drafters import DrafterPool

HEALTH_SECONDS = 1.0  # time for a role to answer a health check


class Checked(Protocol):
    """A role in another process."""

    async def check_health(self, timeout: float) -> bool: ...


async def role_status(name: str, address: str, role: Checked | None) -> RoleStatus:
    """Run a role's health check. `role`: None if it is absent, and so not healthy."""
    if role is not None and await role.check_health(HEALTH_SECONDS):
        return RoleStatus(name, address)
    reason = "it does not answer, or its last step failed"
    return RoleStatus(name, address, is_healthy=False, reason=reason)


class DrafterRoster:
    """Fills a pool with drafters for an engine. Belongs to one event loop."""

    def __init__(self, config: PipelineConfig, security: Security) -> None:
        self._config = config
        self._security = security
        self._processes = {process.role: process.drafter for process in config.drafter_processes}
        self._here = config.drafters_in("coordinator")
        roles = [*self._processes, *map(_role_of, self._here)]
        num_expected = len(roles) + len(config.drafters_in("verifier"))
        self.pool = DrafterPool(num_expected, [*config.engine.named_drafters] or [UNNAMED])
        self.remotes: dict[str, RemoteDrafter] = {}
        self._local: dict[str, LocalDrafter] = {}
        self._beside: dict[str, DrafterBesideVerifier] = {}
        self._reasons = dict.fromkeys(roles, "it has not connected yet")  # why each one is missing
        self._info: TargetInfo | None = None

    async def load(
        self,
        info: TargetInfo,
        vocabulary: str,
        host: DrafterHost,
        observed: ObservableVerifier | None = None,
    ) -> None:
        """Load the drafters that run in this process, and use those that the verifier hosts.

        observed: the verifier, if it is in this process. The status says why a drafter could not be
        loaded.
        """
        self._info = info
        for name in self._config.drafters_in("verifier"):
            beside = DrafterBesideVerifier(name, host, self._tested)
            self._beside[_role_of(name)] = beside
            self.pool.add(beside, _role_of(name), name)
        target = Target(info, vocabulary, self._config.engine.target.path, observed)
        for name, section in self._here.items():
            role, search = _role_of(name), self._config.engine.search
            try:
                drafter = await asyncio.to_thread(load_drafter, section, search, target)
            except Exception as error:
                log_problem(f"{role} was not loaded", error)
                self._reasons[role] = str(error)
            else:
                self._local[role] = drafter
                self._join(role, drafter, name)

    async def connect(self, role: str, address: str) -> None:
        """Connect to a drafter and draft once; it replaces an earlier drafter of that role.

        Raises DrafterError.
        """
        remote = await self._tested(address)
        await self.disconnect(role, "")
        self.remotes[role] = remote
        self._join(role, remote, self._processes[role])

    async def _tested(self, address: str) -> RemoteDrafter:
        """Connect to a drafter and draft once as a test. Raises DrafterError."""
        assert self._info is not None, "load() comes first"
        seconds = self._config.deadlines.draft_seconds
        limits = self._config.limits(seconds)
        remote = await RemoteDrafter.connect(
            address, self._security, deadline_seconds=seconds, limits=limits
        )
        try:
            await remote.draft([self_test.draft_request(self._info)])
            await remote.release(self_test.REQUEST_ID)
        except BaseException:
            await remote.close()
            raise
        return remote

    async def disconnect(self, role: str, reason: str) -> None:
        """Stop using a drafter; the status gives the reason."""
        self._reasons[role] = reason
        remote = self.remotes.pop(role, None)
        if remote is not None:
            self.pool.remove(remote)
            await remote.close()

    async def status(self) -> list[RoleStatus]:
        """Return the health of every drafter, connected ones first."""
        present = sorted(self.remotes.items())
        checks = [role_status(role, remote.address, remote) for role, remote in present]
        checks += [_status_beside(role, beside) for role, beside in sorted(self._beside.items())]
        return [
            *await asyncio.gather(*checks),
            *(RoleStatus(role) for role in sorted(self._local)),
            *(
                RoleStatus(role, is_healthy=False, reason=reason)
                for role, reason in sorted(self._reasons.items())
            ),
        ]

    async def close(self) -> None:
        """Disconnect from all drafters, and close those of this process."""
        for role in list(self.remotes):
            await self.disconnect(role, "the coordinator was stopped")
        while self._beside:
            _, beside = self._beside.popitem()
            self.pool.remove(beside)
            await beside.close()
        while self._local:
            _, drafter = self._local.popitem()
            self.pool.remove(drafter)
            drafter.close()

    def _join(self, role: str, drafter: Drafter, name: str) -> None:
        del self._reasons[role]
        self.pool.add(drafter, role, name)


async def _status_beside(role: str, drafter: DrafterBesideVerifier) -> RoleStatus:
    try:
        async with asyncio.timeout(HEALTH_SECONDS):
            remote = await drafter.connected()
    except TimeoutError:
        return await role_status(role, "", None)
    except DrafterError as error:
        return RoleStatus(role, is_healthy=False, reason=str(error))
    return await role_status(role, remote.address, remote)


def _role_of(name: str) -> str:
    """Return the role of a drafter that shares its process with another role."""
    return f"drafter {name}"
