"""grpc.health.v1: a role is SERVING if its steps succeed, not merely if its process exists.

An idle role occasionally runs a small step itself, so that its status stays accurate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from diffuspec.core.errors import (
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    StalePrefixError,
    VerifierUnavailableError,
)

logger = logging.getLogger(__name__)

_RECENT_SECONDS = 10.0
_CHECK_SECONDS = 1.0  # pause between checks of whether an idle role must run a step
_CALLERS_FAULT = (InvalidRequestError, OverloadedError, RequestCancelledError, StalePrefixError)
_WATCH_SECONDS = 0.5


class StepHealth:
    """Determines from a role's steps whether it is healthy.

    It is healthy while the last step, or any step in the last 10 seconds, succeeded, and no step
    has been running for longer than `max_step_seconds` without another step succeeding in that
    time. Failures caused by the caller do not count; a step whose process is lost makes the role
    unhealthy at once. A role without any step so far is healthy.
    """

    def __init__(
        self, max_step_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_step_seconds = max_step_seconds
        self._clock = clock
        self._started: dict[int, float] = {}
        self._num_started = 0
        self._has_failed = False
        self._succeeded_at = -math.inf

    @property
    def is_healthy(self) -> bool:
        now = self._clock()
        oldest = min(self._started.values(), default=now)
        if now - max(oldest, self._succeeded_at) > self._max_step_seconds:
            return False
        return not self._has_failed or self._succeeded_lately

    @property
    def _succeeded_lately(self) -> bool:
        return self._clock() - self._succeeded_at <= _RECENT_SECONDS

    @contextlib.asynccontextmanager
    async def checked_when_idle(self, step: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
        """While the context is open, run a step whenever recent steps do not show the health."""
        checking = asyncio.create_task(self._keep_checking(step))
        try:
            yield
        finally:
            checking.cancel()

    async def check(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run a step and count it. Raises the step's errors."""
        with self.step():
            await step()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Count the content of the context as one step."""
        self._num_started += 1
        number = self._num_started
        self._started[number] = self._clock()
        try:
            yield
        except Exception as error:
            if not isinstance(error, _CALLERS_FAULT):
                self._has_failed = True
            if isinstance(error, VerifierUnavailableError):
                self._succeeded_at = -math.inf
            raise
        else:
            self._has_failed = False
            self._succeeded_at = self._clock()
        finally:
            del self._started[number]

    async def _keep_checking(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if self._started or (self._succeeded_lately and not self._has_failed):
                continue
            try:
                await self.check(step)
            except Exception as error:
                logger.debug("a health check failed: %s", error)


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers for every service of a server; "" is healthy when all of them are."""

    def __init__(self, services: Mapping[str, Callable[[], bool]]) -> None:
        self._services = services
        self.is_draining = False

    async def Check(
        self,
        request: HealthCheckRequest,
        context: grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse],
    ) -> HealthCheckResponse:
        status = self._status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(
                grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r} here"
            )
        return HealthCheckResponse(status=status)

    async def Watch(
        self,
        request: HealthCheckRequest,
        context: grpc.aio.ServicerContext[HealthCheckRequest, HealthCheckResponse],
    ) -> None:
        last = None
        while True:
            is_last = self.is_draining
            status = self._status(request.service)
            if status != last:
                await context.write(HealthCheckResponse(status=status))
            if is_last:
                return
            last = status
            await asyncio.sleep(_WATCH_SECONDS)

    def _status(self, service: str) -> HealthCheckResponse.ServingStatus.ValueType:
        if service and service not in self._services:
            return HealthCheckResponse.SERVICE_UNKNOWN
        asked = [self._services[service]] if service else self._services.values()
        if self.is_draining or not all(is_healthy() for is_healthy in asked):
            return HealthCheckResponse.NOT_SERVING
        return HealthCheckResponse.SERVING
