"""The pipelines that an ingress can use: found through the directory, connected, and checked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Self, TypeAlias

from actors.service.directory import Member
from actors.settings import PipelineConfig
from actors.supervision.background import in_background
from diffuspec.core.errors import DiffuspecError, WorkerError
from diffuspec.core.losses import Losses
from diffuspec.rpc.client.coordinator import RemoteCoordinator

logger = logging.getLogger(__name__)

ListPipelines: TypeAlias = Callable[[], Awaitable[Sequence[Member]]]

POLL_SECONDS = 0.5
_CHECK_SECONDS = 1.0  # time for a coordinator to answer a health check


class Link:
    """A pipeline as one ingress sees it, and a connection to its coordinator."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.client: RemoteCoordinator | None = None
        self.is_listed = True  # whether the directory still lists it
        self.is_healthy = False  # the last check succeeded, and no connection was lost since
        self.is_lost = False  # a connection was lost, and no check has succeeded since then
        self.problem = "not connected yet"  # "" if healthy
        self.open: Counter[str] = Counter()  # requests of this ingress, counted by id
        self.num_suspects = 0  # requests of this ingress that run alone there, or will
        self.moving: set[str] = set()  # ids of open requests that are moving to another pipeline

    @property
    def num_requests(self) -> int:
        """Number of requests from all ingresses, as far as this one knows."""
        return max(self.open.total(), self.member.num_requests)

    @contextlib.contextmanager
    def answering(self, request_id: str, losses: Losses) -> Iterator[None]:
        """Count a request as open while the context is open."""
        is_suspect = losses.is_suspect
        self.open[request_id] += 1
        self.num_suspects += is_suspect
        try:
            yield
        finally:
            self.open -= Counter([request_id])
            self.num_suspects -= is_suspect
            if request_id not in self.open:
                self.moving.discard(request_id)

    async def release(self) -> None:
        """Cancel the open requests, which then continue on other pipelines."""
        assert self.client is not None
        for request_id in self.open.keys() - self.moving:
            self.moving.add(request_id)
            with contextlib.suppress(WorkerError):  # a lost coordinator has already ended them
                await self.client.cancel(request_id)

    def lost(self, reason: str) -> None:
        """Record the loss of a connection; it holds until the next check."""
        self.is_healthy, self.is_lost, self.problem = False, True, reason


class PipelinePool:
    """Follows the directory while its context is open. Belongs to one event loop.

    `list_pipelines` raises WorkerError while the directory is down; known pipelines stay. A
    pipeline is removed once it is neither in the directory nor answering.
    """

    def __init__(self, config: PipelineConfig, list_pipelines: ListPipelines) -> None:
        self._config = config
        self._list_pipelines = list_pipelines
        self._links: dict[str, Link] = {}
        self._changed = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._following = in_background(self._follow(), "the list of pipelines")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        for link in self._links.values():
            await _close(link)

    @property
    def links(self) -> tuple[Link, ...]:
        """All known pipelines."""
        return tuple(self._links.values())

    def usable(self) -> dict[str, Link]:
        """Return the usable pipelines by name: the healthy ones.

        If none is healthy, the connected ones: their requests wait until they are healthy again.
        """
        open_links = {
            name: link
            for name, link in self._links.items()
            if link.client is not None and link.member.accepts_requests and not link.is_lost
        }
        healthy = {name: link for name, link in open_links.items() if link.is_healthy}
        return healthy or open_links

    async def wait_until_usable(self) -> None:
        """Wait until there is a usable pipeline."""
        while not self.usable():
            await self._changed.wait()

    async def _follow(self) -> None:
        while True:
            try:
                self._update(await self._list_pipelines())
            except WorkerError as error:
                logger.warning("the directory of pipelines is away: %s", error)
            await asyncio.gather(*(self._check(link) for link in self.links))
            for name, link in list(self._links.items()):
                if not link.is_listed and not link.is_healthy:
                    del self._links[name]
                    await _close(link)
            self._changed.set()
            self._changed = asyncio.Event()
            await asyncio.sleep(POLL_SECONDS)

    def _update(self, members: Sequence[Member]) -> None:
        for link in self._links.values():
            link.is_listed = False
        for member in members:
            link = self._links.setdefault(member.name, Link(member))
            link.member, link.is_listed = member, True

    async def _check(self, link: Link) -> None:
        """Connect to a pipeline if necessary, and check its health."""
        try:
            if link.client is None or link.client.address != link.member.address:
                await self._connect(link)
            assert link.client is not None
            is_healthy = await link.client.is_serving(_CHECK_SECONDS)
        except DiffuspecError as error:
            link.is_healthy, link.problem = False, str(error)
            return
        link.is_healthy = is_healthy
        link.problem = "" if is_healthy else "it is not serving"
        if is_healthy:
            link.is_lost = False
        elif link.member.accepts_requests and any(one.is_healthy for one in self.usable().values()):
            await link.release()

    async def _connect(self, link: Link) -> None:
        """Connect to a pipeline's coordinator. Raises WorkerError and ConfigError."""
        await _close(link)
        member, config = link.member, self._config
        if not member.address:
            raise WorkerError(f"there is no coordinator: {member.reason}")
        link.client = await RemoteCoordinator.connect(
            member.address,
            member.security,
            deadline_seconds=config.deadlines.answer_seconds,
            limits=config.coordinator_limits(),
        )
        link.is_lost = False
        logger.info("pipeline %s answers at %s", member.name, member.address)


async def _close(link: Link) -> None:
    client, link.client = link.client, None
    if client is not None:
        await client.close()
