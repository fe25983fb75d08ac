"""An engine behind the HTTP application."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from diffuspec.audit import Auditor
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.engine_base import EngineBase
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import read_conventions
from diffuspec.serve.settings import ServeSettings


class EngineBackend:
    """A `Backend` over an engine. The caller closes the engine."""

    def __init__(
        self, engine: EngineBase, name: str, settings: ServeSettings | None = None
    ) -> None:
        """`name` is the model's name for clients. Raises ConfigError and ModelLoadError."""
        info, settings = engine.info, settings or ServeSettings()
        audit_rate = settings.audit_rate
        self.model = ServedModel(
            name,
            int(time.time()),
            info.max_model_len,
            info.vocab_size,
            engine.default_speculation,
            read_conventions(engine.config.target.path, engine.tokenizer, settings),
        )
        self._engine = engine
        self.auditor = Auditor(engine, audit_rate) if audit_rate else None

    @property
    def tokenizer(self) -> Any:
        return self._engine.tokenizer

    def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput]:
        """See `Backend.stream`."""
        prompt_ids = prompt_token_ids.tolist()
        stream = self._engine.stream(prompt_ids, sampling, speculation, request_id)
        if self.auditor is None:
            return stream
        return self.auditor.follow(stream, request_id, prompt_ids, sampling)

    async def status(self) -> ServiceStatus:
        return await self._engine.status()

    async def metrics(self) -> str:
        """Return the Prometheus series as text."""
        return await self._engine.series()
