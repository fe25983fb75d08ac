"""The interface between HTTP and an engine in this process, or the pipelines of a cluster."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Protocol

from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.serve.conventions import Conventions


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model as clients see it."""

    name: str
    created: int  # seconds since 1970
    max_model_len: int  # prompt and output tokens of one request
    vocab_size: int  # token ids that the tokenizer knows: 0 .. vocab_size - 1
    # the default for requests
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    conventions: Conventions = field(default_factory=Conventions)


class TokenSource(Protocol):
    """Answers prompts with tokens. Belongs to one event loop."""

    @property
    def model(self) -> ServedModel: ...

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer, as returned by `load_tokenizer`. Thread-safe."""
        ...

    def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the tokens of each step; closing the generator cancels the request within one step.

        Without `speculation` the deployment's default applies. Raises InvalidRequestError and
        OverloadedError before the first output, WorkerError and RequestCancelledError at any time.
        """
        ...


class Backend(TokenSource, Protocol):
    """What the HTTP application needs. Belongs to the application's event loop.

    While a backend is not ready, any of its members may raise VerifierUnavailableError; clients
    then get 503 and may try again.
    """

    async def status(self) -> ServiceStatus:
        """Return the state of roles and requests within a second or two.

        No request can be answered while a role whose name begins with "verifier" is unhealthy.
        """
        ...

    @property
    def is_alive(self) -> bool:
        """Whether the process can answer; False: its supervisor should start it again."""
        ...

    async def metrics(self) -> str:
        """Return the Prometheus series as text."""
        ...
