"""The HTTP application's backend on a cluster: pipelines, called over gRPC.

A request goes to the pipeline that suits its prompt best. If that pipeline is lost or shuts down,
another one produces the rest of the answer: tokens depend only on prompt, parameters and seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from actors.service.pool import Link, PipelinePool
from actors.service.routing import Router
from actors.settings import PipelineConfig
from diffuspec.core.errors import (
    DiffuspecError,
    OverloadedError,
    RequestCancelledError,
    VerifierLostError,
    VerifierUnavailableError,
    WorkerError,
)
from diffuspec.core.interfaces import RoleStatus, ServiceStatus, TargetInfo
from diffuspec.core.losses import Losses
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.client.resumption import ResumedAnswer
from diffuspec.rpc.messages.status import LostAnswerError, TransportError
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions
from diffuspec.telemetry.series import merge_series
from diffuspec.text.prompt_memory import prompt_blocks

_CHECK_SECONDS = 1.0
_NO_PIPELINE = "no pipeline can answer now; try again later"


class PipelinesBackend:
    """A `Backend` over a pool of pipelines. The caller opens and closes the pool.

    patience_seconds: longest time that a request waits for another pipeline after losing its own.
    """

    def __init__(
        self,
        name: str,
        config: PipelineConfig,
        tokenizer: Any,
        pool: PipelinePool,
        list_series: Callable[[], Awaitable[dict[str, str]]],
        patience_seconds: float,
        conventions: Conventions | None = None,
    ) -> None:
        """`name`: the model's for clients; `list_series`: each pipeline's Prometheus series."""
        self._conventions = conventions or Conventions()
        self.tokenizer = tokenizer
        self.pool = pool
        self._name, self._created = name, int(time.time())
        self._speculation = config.engine.speculation
        self._list_series = list_series
        self._patience_seconds = patience_seconds
        self._router = Router()
        self._info: TargetInfo | None = None

    @property
    def model(self) -> ServedModel:
        """The model that the pipelines serve. Raises VerifierUnavailableError until one has."""
        if self._info is None:
            known = (link.member.info for link in self.pool.links)
            self._info = next((info for info in known if info is not None), None)
        if self._info is None:
            raise VerifierUnavailableError(_NO_PIPELINE)
        info = self._info
        return ServedModel(
            self._name,
            self._created,
            info.max_model_len,
            info.vocab_size,
            self._speculation,
            self._conventions,
        )

    def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput]:
        """See `Backend.stream`."""
        request = _Request(self, prompt_token_ids, sampling.with_seed(), speculation, request_id)
        return ResumedAnswer(request.ask, request.wait_for_another, request_id).stream()

    async def status(self) -> ServiceStatus:
        """Return the state of the pipelines, of their roles, and of all requests."""
        links = self.pool.links
        found = await asyncio.gather(*map(_status, links))
        missing = _missing_role(links, found)
        roles = [RoleStatus(missing or "verifier", "", not missing, missing and _NO_PIPELINE)]
        reasons: list[str] = []
        for link, status in zip(links, found, strict=True):
            name = f"pipeline {link.member.name}"
            roles.append(RoleStatus(name, link.member.address, link.is_healthy, link.problem))
            roles += [replace(role, name=f"{name}: {role.name}") for role in status.roles]
            reasons += [f"{name}: {one}" for one in (link.problem, *status.degraded_reasons) if one]
        return ServiceStatus.merge(found, roles, reasons)

    @property
    def is_alive(self) -> bool:
        """Always: pipelines that stop are replaced by others than this process."""
        return True

    async def metrics(self) -> str:
        """Return the Prometheus series of all pipelines, a few seconds old, as text."""
        return merge_series("pipeline", await self._list_series())

    def choose(self, blocks: Sequence[bytes], losses: Losses) -> list[Link]:
        """Return the pipelines to try for a prompt, in order.

        Suspects share a single pipeline, if possible, which gets no other requests meanwhile.
        """
        usable = self.pool.usable()
        with_suspects = {name: link for name, link in usable.items() if link.num_suspects}
        if losses.is_suspect:
            usable = with_suspects or usable
        else:
            usable = {name: usable[name] for name in usable.keys() - with_suspects} or usable
        loads = {name: link.num_requests for name, link in usable.items()}
        return [usable[name] for name in self._router.rank(blocks, loads)]

    def chosen(self, blocks: Sequence[bytes], link: Link) -> None:
        """Record that a pipeline has taken a prompt."""
        self._router.remember(blocks, link.member.name)

    async def another(self, error: TransportError) -> None:
        """Wait for a usable pipeline. Raises `error` if there is none in time."""
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self.pool.wait_until_usable()
        except TimeoutError:
            raise error from None


class _Request:
    """One request, which may move from pipeline to pipeline."""

    def __init__(
        self,
        backend: PipelinesBackend,
        prompt: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> None:
        self._backend = backend
        self._blocks = prompt_blocks(prompt, sampling.cache_salt)
        self._request_id = request_id
        self._parameters = (prompt, sampling, speculation, request_id)
        self._has_moved = False

    async def ask(self, committed: Sequence[int], losses: Losses) -> AsyncGenerator[RequestOutput]:
        return self._rest(committed, losses)

    async def wait_for_another(self, error: TransportError) -> None:
        self._has_moved = True
        await self._backend.another(error)

    async def _rest(
        self, committed: Sequence[int], losses: Losses
    ) -> AsyncGenerator[RequestOutput]:
        """Yield what follows the committed tokens, from the first pipeline that takes the request.

        Raises TransportError if the request should be sent to another pipeline.
        """
        refusal: DiffuspecError | None = None
        for link in self._backend.choose(self._blocks, losses):
            try:
                async with contextlib.aclosing(self._from(link, committed, losses)) as increments:
                    async for increment in increments:
                        yield increment
                return
            except OverloadedError as error:
                refusal = error
        if refusal is not None:
            raise refusal
        raise (TransportError if self._has_moved else VerifierUnavailableError)(_NO_PIPELINE)

    async def _from(
        self, link: Link, committed: Sequence[int], losses: Losses
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the outputs of a single pipeline."""
        client = link.client
        if client is None:
            raise TransportError(f"{link.member.name} has gone")
        with link.answering(self._request_id, losses):
            stream = client.stream(*self._parameters, committed, losses.number)
            try:
                async with contextlib.aclosing(stream):
                    self._backend.chosen(self._blocks, link)
                    async for increment in stream:
                        yield increment
            except TransportError as error:
                link.lost(str(error))
                raise
            except VerifierUnavailableError as error:
                link.lost(str(error))
                if not self._backend.pool.usable():
                    raise
                kind = LostAnswerError if isinstance(error, VerifierLostError) else TransportError
                raise kind(f"{link.member.name}: {error}") from error
            except RequestCancelledError as error:
                if await self._was_wanted(link, client):
                    raise
                raise TransportError(f"{link.member.name}: {error}") from error

    async def _was_wanted(self, link: Link, client: RemoteCoordinator) -> bool:
        """Return whether a client cancelled the request, not a pipeline shutting down."""
        if self._request_id in link.moving:
            return False
        if await client.check_health(_CHECK_SECONDS):
            return True
        link.lost("it shuts down")
        return False


def _missing_role(links: Sequence[Link], found: Sequence[ServiceStatus]) -> str:
    """Return the role whose absence keeps every pipeline from answering; "" if one can answer."""
    if any(link.is_healthy and link.member.accepts_requests for link in links):
        return ""
    if any(link.is_healthy for link in links):
        return "a pipeline that accepts requests"
    if not links:
        return "pipeline"
    has_coordinator = any(status.roles for status in found)  # only a coordinator reports roles
    return "verifier" if has_coordinator else "coordinator"


async def _status(link: Link) -> ServiceStatus:
    if link.client is not None:
        with contextlib.suppress(WorkerError, TimeoutError):
            async with asyncio.timeout(_CHECK_SECONDS):
                return await link.client.status()
    return ServiceStatus(())
