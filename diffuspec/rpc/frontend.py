"""What serves prompts: the part of an engine that other processes may ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from diffuspec.prompt import Prompt
from diffuspec.sequence import Increment
from diffuspec.types import SamplingParams, SpeculationParams


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """How one role is."""

    name: str
    address: str = ""  # empty: in the coordinator's own process
    is_healthy: bool = True
    reason: str = ""  # why it is not healthy


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How the service is. degraded_reasons: why answers come more slowly than they should."""

    roles: tuple[RoleStatus, ...]
    degraded_reasons: tuple[str, ...] = ()
    num_running: int = 0
    num_waiting: int = 0


class Frontend(Protocol):
    """Answers prompts; all of it belongs to one event loop."""

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str | None,
    ) -> AsyncIterator[Increment]:
        """Yield what every step adds; closing the iterator cancels the request.

        Raises InvalidRequestError, OverloadedError, RequestCancelledError and VerifierError.
        """
        ...

    def cancel(self, request_id: str) -> bool:
        """End what runs under an id; return whether anything did."""
        ...

    async def status(self) -> ServiceStatus:
        """Tell how the roles are, within a second or two."""
        ...
