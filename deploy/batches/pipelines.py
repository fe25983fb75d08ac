"""A pipeline of this process as a backend."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from actors.pipeline import Pipeline
from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, TokenIds
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import read_conventions
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.tokenizer import load_tokenizer


class PipelineBackend:
    """A `Backend` over a pipeline that has started. The caller stops the pipeline."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        """`name` is the model's. Raises VerifierUnavailableError while there is no coordinator."""
        actor, config = pipeline.coordinator.actor, pipeline.config
        if actor is None:
            raise VerifierUnavailableError(pipeline.coordinator.problem)
        info, path = actor.ready.info, config.engine.target.path
        self.tokenizer: Any = load_tokenizer(path)
        self.model = ServedModel(
            name,
            int(time.time()),
            info.max_model_len,
            info.vocab_size,
            config.engine.speculation,
            read_conventions(path, self.tokenizer, ServeSettings()),
        )
        self._pipeline = pipeline

    def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput]:
        """See `Backend.stream`."""
        prompt = prompt_token_ids.tolist()
        return self._pipeline.stream(prompt, sampling, speculation, request_id)

    async def status(self) -> ServiceStatus:
        """Return the state of roles and requests."""
        return await self._pipeline.status()

    async def metrics(self) -> str:
        """Return the Prometheus series as text."""
        return await self._pipeline.metrics()
