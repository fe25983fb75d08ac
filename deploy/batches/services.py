"""What answers the rows of a batch, and how it fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from deploy.batches.results import Reply
from diffuspec.core.errors import DiffuspecError, WorkerError


class Service(Protocol):
    """An OpenAI endpoint: over HTTP, or in this process."""

    @property
    def concurrency(self) -> int:
        """Number of rows in flight that keeps the service busy."""
        ...

    async def ask(self, url: str, body: Mapping[str, Any], request_id: str) -> Reply:
        """Return the reply to a request, errors of the request included.

        Raises ServiceBusyError and ServiceLostError, after which the same request may succeed.
        """
        ...

    async def is_up(self) -> bool:
        """Whether it could answer a request now."""
        ...


class ServiceBusyError(WorkerError):
    """The service takes no more requests at the moment."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ServiceLostError(WorkerError):
    """The service failed, or cannot be reached."""


class BatchStoppedError(DiffuspecError):
    """The batch cannot go on now; what is done is kept, and the same command goes on later."""
