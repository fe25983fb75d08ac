"""The verifier of a pipeline whose roles share one process: the coordinator's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from actors.roles.watched_verifier import WatchedVerifier
from actors.settings import PipelineConfig
from diffuspec.core.interfaces import HostedDrafter, TargetInfo
from diffuspec.core.types import Verdict, VerifyRequest

if TYPE_CHECKING:
    from diffuspec.models.target import CausalTarget


class ColocatedVerifier:
    """A `HostedVerifier` over a target in this process."""

    drafters: Sequence[HostedDrafter] = ()  # those that observe the target are the coordinator's
    num_bytes_sent = num_bytes_received = 0
    problem = ""  # it is in service as long as this process

    def __init__(self, target: CausalTarget, max_step_seconds: float) -> None:
        """max_step_seconds: duration after which a step counts as hung."""
        self.target = target
        self._steps = WatchedVerifier(target)
        self._max_step_seconds = max_step_seconds

    @property
    def info(self) -> TargetInfo:
        return self.target.info

    @property
    def is_well(self) -> bool:
        """Whether steps can succeed. Any thread may ask."""
        return not self._steps.failure and self._steps.oldest_seconds < self._max_step_seconds

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        """See `Verifier.verify`."""
        return await self._steps.verify(requests)

    async def release(self, request_id: str) -> None:
        await self._steps.release(request_id)

    async def check_health(self, timeout: float) -> bool:
        return self.is_well


@contextlib.asynccontextmanager
async def colocated_verifier(config: PipelineConfig) -> AsyncGenerator[ColocatedVerifier]:
    """Load the target into this process. Raises ConfigError and ModelLoadError."""
    target = await asyncio.to_thread(_load, config)
    try:
        yield ColocatedVerifier(target, config.deadlines.verify_seconds)
    finally:
        await asyncio.to_thread(target.close)


def _load(config: PipelineConfig) -> CausalTarget:
    from diffuspec.models.target import CausalTarget  # imports torch
    from diffuspec.text.grammars import grammars_of

    target = CausalTarget.load(config.engine.target)
    # done now, since later all requests would wait for it
    grammars_of(config.engine.target.path, target.info).prepare()
    return target
