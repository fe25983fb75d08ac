"""A pipeline: all roles of one deployment, placed, started, supervised and stopped.

    async with Pipeline(load_pipeline(path)) as pipeline:
        async for increment in pipeline.stream("Once upon a time"):
            ...

The process must be connected to a Ray cluster. Answers come from the coordinator over gRPC; when it
is lost, the next coordinator continues them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Self

from ray.util.placement_group import PlacementGroup

from actors.certificate import make_certificate
from actors.placement import Placement, is_on_one_machine
from actors.role_reports import RoleReport, describe_roles
from actors.settings import PipelineConfig
from actors.supervision.coordinator_supervisor import CoordinatorSupervisor
from actors.supervision.drafter_supervisor import DrafterSupervisor
from actors.supervision.role_actor import ActorLostError
from diffuspec.core.errors import DiffuspecError, DrafterError, ShuttingDownError
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.losses import Losses
from diffuspec.core.params import GREEDY, SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, RequestOutput
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.client.resumption import ResumedAnswer
from diffuspec.rpc.messages.status import TransportError
from diffuspec.rpc.security import new_token

logger = logging.getLogger(__name__)

_STATUS_SECONDS = 10.0
_SLACK_SECONDS = 10.0  # time in which health checks notice a lost coordinator
_READ_SECONDS = 2.0  # time for callers to read the rest of their answers


class Pipeline:
    """An async context manager for all roles of one deployment, tied to one event loop.

    token: the secret that every call between roles and to the coordinator carries; None: a random
    one. name: the value of the label `pipeline` in Ray's exporter; None: a random one. home: a
    granted placement group with the bundles of the first of `make_groups`; None: a new one.
    """

    def __init__(
        self,
        config: PipelineConfig,
        token: str | None = None,
        name: str | None = None,
        home: PlacementGroup | None = None,
    ) -> None:
        self.config = config
        self.name = secrets.token_hex(4) if name is None else name
        self.security = config.security(new_token() if token is None else token)
        self._home = home
        self._placement: Placement | None = None
        self._coordinator: CoordinatorSupervisor | None = None
        self._drafters: tuple[DrafterSupervisor, ...] = ()
        self._answers: set[ResumedAnswer] = set()  # unfinished answers
        self._is_draining = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def coordinator(self) -> CoordinatorSupervisor:
        assert self._coordinator is not None, "start() comes first"
        return self._coordinator

    @property
    def address(self) -> str:
        """The coordinator's "host:port", for a `RemoteCoordinator`; "" while there is none."""
        return self._coordinator.address if self._coordinator is not None else ""

    async def start(self) -> None:
        """Place and start all roles; return once they answer and every drafter has been tried.

        A drafter that fails, or has no room, does not fail the start: status() names the reason.
        Without certificates of the configuration, roles on a cluster that may have several machines
        get one that is made for this pipeline. Raises
        PlacementError, ConfigError, ModelLoadError and VerifierError, and leaves nothing behind.
        """
        if self.security.tls is None and not is_on_one_machine():
            self.security = replace(self.security, tls=make_certificate())
        self._placement = placement = await Placement.reserve(
            self.config, self.security, self.name, self._home
        )
        try:
            self._coordinator = coordinator = CoordinatorSupervisor(placement)
            self._drafters = tuple(
                DrafterSupervisor(process, placement, coordinator)
                for process in self.config.drafter_processes
            )
            for drafter in self._drafters:
                drafter.supervise()
            await coordinator.start()
            coordinator.supervise()
            await asyncio.gather(*(drafter.tried() for drafter in self._drafters))
            await self._test_drafting()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Refuse new requests, let the others finish within drain_seconds, then end all actors.

        Until then lost actors are still replaced, the coordinator included. If stopping fails or is
        interrupted, all actors are killed at once.
        """
        self._is_draining = True
        try:
            if self._coordinator is not None:
                await self._drain(self._coordinator)
                await self._halt()
                await self._coordinator.stop()
                await self._answers_closed(_READ_SECONDS)
            await asyncio.gather(*(drafter.stop() for drafter in self._drafters))
        finally:
            await self._release()

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the tokens of each step; closing the iterator cancels the request.

        If the coordinator is lost, its replacement continues after the tokens already yielded: a
        request's tokens do not depend on the process that decodes them. Raises ActorLostError if
        there is no replacement in time, FatalRequestError if three coordinators are lost
        while they work on it, and the errors of `Frontend.stream`.
        """
        if self._is_draining:
            raise ShuttingDownError("the pipeline is shutting down; try again later")
        sampling = sampling.with_seed()  # the next coordinator has to draw the same tokens

        async def ask(committed: Sequence[int], losses: Losses) -> AsyncGenerator[RequestOutput]:
            client = await self._client()
            parameters = (prompt, sampling, speculation, request_id)
            return client.stream(*parameters, committed, losses.number)

        answer = ResumedAnswer(ask, self._wait_for_another, request_id)
        self._answers.add(answer)
        try:
            async with contextlib.aclosing(answer.stream()) as increments:
                async for increment in increments:
                    yield increment
        finally:
            self._answers.discard(answer)

    async def cancel(self, request_id: str) -> bool:
        """Cancel the requests with an id; return whether there were any.

        Requests made through this object end at once, even while there is no coordinator. Requests
        of other clients end only if there is one. Raises InvalidRequestError.
        """
        asked_here = [one.cancel() for one in self._answers if one.request_id == request_id]
        return await self._cancel_there(request_id) or any(asked_here)

    async def status(self) -> ServiceStatus:
        """Return the state of roles and requests, even while there is no coordinator."""
        actor, reason = self.coordinator.actor, self.coordinator.problem
        if actor is not None:
            try:
                status: ServiceStatus = await actor.call("status", seconds=_STATUS_SECONDS)
                return status
            except DiffuspecError as error:
                reason = str(error)
        return ServiceStatus((), (f"coordinator: {reason}",))

    async def metrics(self) -> str:
        """Return the coordinator's Prometheus series as text. Raises ActorLostError."""
        actor = (await self.coordinator.serving()).actor
        text: str = await actor.call("metrics", seconds=_STATUS_SECONDS)
        return text

    async def num_requests(self) -> int:
        """Return the number of requests running and waiting; 0 while there is no coordinator."""
        actor = self.coordinator.actor
        if actor is None:
            return 0
        try:
            return int(await actor.call("num_requests", seconds=_STATUS_SECONDS))
        except ActorLostError:
            return 0

    async def fatal_problem(self) -> str:
        """Return why this pipeline cannot recover; "" if it is well or may recover.

        It cannot recover once its placement group is lost, or when there has been no coordinator
        for longer than placing and starting one may take.
        """
        placement, coordinator = self._placement, self._coordinator
        if self._is_draining or placement is None or coordinator is None:
            return ""
        if await placement.is_lost():
            return "a placement group was removed"
        deadlines = self.config.deadlines
        if coordinator.seconds_out > deadlines.placement_seconds + deadlines.start_seconds:
            return f"no coordinator for {coordinator.seconds_out:.0f} s: {coordinator.problem}"
        return ""

    async def link_bytes(self) -> dict[str, tuple[int, int]]:
        """Return the bytes sent and received on each link between roles. Raises ActorLostError."""
        actor = (await self.coordinator.serving()).actor
        links: dict[str, tuple[int, int]] = await actor.call("link_bytes", seconds=_STATUS_SECONDS)
        for one in self._drafters:
            if one.drafter is not None and one.scorer is not None:
                name = f"{one.name} - {one.scorer_name}"
                links[name] = await one.drafter.call("link_bytes", seconds=_STATUS_SECONDS)
        return links

    async def describe(self) -> tuple[RoleReport, ...]:
        """Return the place and address of every actor."""
        return await describe_roles(self.coordinator, self._drafters)

    async def _drain(self, coordinator: CoordinatorSupervisor) -> None:
        """Let running requests finish, on a new coordinator if the present one is lost."""
        seconds = self.config.deadlines.drain_seconds
        ends_at = time.monotonic() + seconds
        if not await coordinator.drain(seconds):
            await self._answers_closed(ends_at - time.monotonic())

    async def _answers_closed(self, seconds: float) -> None:
        """Wait until every answer has been read to its end, or `seconds` are over."""
        if self._answers:
            closed = [answer.closed for answer in self._answers]
            await asyncio.wait(closed, timeout=max(seconds, 0.0))

    async def _halt(self) -> None:
        """End the supervision, so that lost actors are no longer replaced."""
        supervisors = [*self._drafters, *([self._coordinator] if self._coordinator else [])]
        await asyncio.gather(*(one.halt() for one in supervisors))

    async def _release(self) -> None:
        placement, self._placement = self._placement, None
        try:
            await self._halt()
            if placement is not None:
                await placement.release()
        finally:
            if self._coordinator is not None:
                await self._coordinator.leave()
            self._is_draining = False

    async def _test_drafting(self) -> None:
        """Answer a prompt with drafts of each drafter that has its own process."""
        names = [one.process.drafter for one in self._drafters if one.problem == ""]
        for name in dict.fromkeys(names):
            actor = (await self.coordinator.serving()).actor
            try:
                seconds = self.config.deadlines.start_seconds
                await actor.call("test_drafting", name, seconds=seconds)
            except DrafterError as error:
                logger.warning("the first answer was decoded plainly: %s: %s", name, error)

    async def _client(self) -> RemoteCoordinator:
        """Return a client of the coordinator. Raises ActorLostError if none serves in time."""
        seconds = self.config.deadlines.start_seconds
        try:
            async with asyncio.timeout(seconds):
                return (await self.coordinator.serving()).client
        except TimeoutError as error:
            raise ActorLostError(
                f"no coordinator was up for {seconds:g} seconds: {self.coordinator.problem}"
            ) from error

    async def _cancel_there(self, request_id: str) -> bool:
        """Cancel a request at the coordinator, if there is one."""
        if self.coordinator.actor is None:
            return False
        try:
            return await (await self.coordinator.serving()).client.cancel(request_id)
        except (ActorLostError, TransportError) as error:
            logger.warning("the coordinator did not cancel %s: %s", request_id, error)
            return False

    async def _wait_for_another(self, error: TransportError) -> None:
        """Wait until the supervisor has noticed the loss of the coordinator.

        Raises `error` if it does not in time: a new call would fail in the same way.
        """
        service = self.coordinator.service
        if service is None:
            return
        seconds = self.config.deadlines.silence_seconds + _SLACK_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await self.coordinator.replaced(service)
        except TimeoutError:
            raise error from None
