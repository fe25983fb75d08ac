"""Drafters that observe the target and so run in its process: their servers and clients.

Each has its own server in the process of rank 0; the verifier gives its clients the addresses. They
change when rank 0 is replaced, so the coordinator looks them up for every draft.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from actors.roles.drafter import DrafterActor
from actors.settings import PipelineConfig
from actors.supervision.background import log_problem
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import HostedDrafter, ObservableVerifier
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.rpc.client.roles import RemoteDrafter
from diffuspec.rpc.security import Security
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest

Connect: TypeAlias = Callable[[str], Awaitable[RemoteDrafter]]  # connects to an address


@contextlib.asynccontextmanager
async def hosted_drafters(
    config: PipelineConfig, security: Security, target: ObservableVerifier, host: str
) -> AsyncGenerator[Sequence[HostedDrafter]]:
    """In this process, serve those configured drafters that observe the target.

    A drafter that fails to start does not fail the verifier: it is listed with its problem.
    """
    found: list[HostedDrafter] = []
    async with contextlib.AsyncExitStack() as stack:
        names, vocabulary = config.drafters_in("verifier"), ""
        if names:
            tokenizer = await asyncio.to_thread(load_tokenizer, config.engine.target.path)
            vocabulary = vocabulary_digest(tokenizer, target.info.vocab_size)
        for name in names:
            actor = DrafterActor(config, security, name)
            stack.push_async_callback(actor.stop)
            try:
                address = await actor.start(target.info, vocabulary, "", host, verifier=target)
            except Exception as error:
                log_problem(f"the drafter {name} does not start beside the target", error)
                found.append(HostedDrafter(name, problem=str(error)))
            else:
                found.append(HostedDrafter(name, address))
        yield found


class DrafterHost(Protocol):
    """A verifier in another process."""

    @property
    def drafters(self) -> Sequence[HostedDrafter]:
        """The drafters in its process; none while it is replaced."""
        ...


class DrafterBesideVerifier:
    """A `Drafter` in a verifier's process. It reconnects when the verifier is replaced."""

    def __init__(self, name: str, host: DrafterHost, connect: Connect) -> None:
        self._name = name
        self._host = host
        self._connect = connect
        self._remote: RemoteDrafter | None = None
        self._connecting = asyncio.Lock()

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See `Drafter.draft`. Raises DrafterError, also while the verifier is being replaced."""
        remote = await self.connected()
        return await remote.draft(requests)

    async def release(self, request_id: str) -> None:
        if self._remote is not None:
            await self._remote.release(request_id)

    async def connected(self) -> RemoteDrafter:
        """Return a client of the drafter at its present address. Raises DrafterError."""
        address = self._address()
        async with self._connecting:
            if self._remote is None or self._remote.address != address:
                await self.close()
                self._remote = await self._connect(address)
            return self._remote

    async def close(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote.close()

    def _address(self) -> str:
        hosted = [one for one in self._host.drafters if one.name == self._name]
        if not hosted:
            raise DrafterError("the verifier does not serve this drafter")
        if hosted[0].problem:
            raise DrafterError(hosted[0].problem)
        return hosted[0].address
