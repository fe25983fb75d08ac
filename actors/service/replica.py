"""A replica of the pipeline deployment: it owns one pipeline, and announces it to the directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.util.placement_group import get_current_placement_group

from actors.pipeline import Pipeline
from actors.service.directory import ANNOUNCE_SECONDS, Member
from actors.service.target_files import read_files
from actors.settings import PipelineConfig
from actors.supervision.background import in_background, log_problem
from diffuspec.core.errors import DiffuspecError, WorkerError
from diffuspec.core.validation import Section, validate

logger = logging.getLogger(__name__)

NUM_REQUESTS = "num_requests"  # the metric by which Serve scales pipelines

_METRICS_SECONDS = 5.0  # pause between two reports of Prometheus series
_CALL_SECONDS = 5.0  # time for the directory to answer


class PipelineOptions(Section):
    """Options that may change while pipelines run: the deployment's `user_config`."""

    accepts_requests: bool = True


class PipelineReplica:
    """A pipeline's replica: a plain class, run by Serve. The pipeline ends with its process."""

    async def __init__(  # type: ignore[misc]
        self, config: PipelineConfig, token: str | None, directory: Any
    ) -> None:
        """Start the pipeline; return once it answers. `directory`: a deployment handle."""
        self.name = serve.get_replica_context().replica_id.unique_id
        self._directory = directory
        self._options = PipelineOptions()
        self._is_ending = False
        self._num_requests = 0
        self._target = config.engine.target.path
        self._pipeline = Pipeline(config, token, self.name, get_current_placement_group())
        await self._pipeline.start()
        self._announcing = (
            in_background(self._announce_always(), f"announcements of {self.name}"),
            in_background(self._tell_metrics_always(), f"metrics of {self.name}"),
        )

    async def __del__(self) -> None:
        """Let running requests finish in drain_seconds, then end everything. Serve waits."""
        self._is_ending = True
        if not hasattr(self, "_announcing"):
            return  # it never started, so there is nothing to end
        with contextlib.suppress(Exception):
            await self._announce()
        try:
            await self._pipeline.stop()
        finally:
            for task in self._announcing:
                task.cancel()
            await self._tell("leave", self.name)

    def reconfigure(self, options: dict[str, Any]) -> None:
        """Apply the deployment's user_config. Raises ConfigError."""
        self._options = validate(PipelineOptions, options)

    async def check_health(self) -> None:
        """Raise WorkerError when the pipeline cannot recover: Serve then starts another replica."""
        if problem := await self._pipeline.fatal_problem():
            raise WorkerError(problem)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the metrics that Serve passes to the autoscaling policy."""
        return {NUM_REQUESTS: float(self._num_requests)}

    async def _announce_always(self) -> None:
        while True:
            try:
                await self._announce()
            except DiffuspecError as error:
                logger.warning("%s cannot tell its state: %s", self.name, error)
            await asyncio.sleep(ANNOUNCE_SECONDS)

    async def _tell_metrics_always(self) -> None:
        """Report series apart from announcements, since a starting coordinator has none."""
        while True:
            try:
                await self._tell("announce_metrics", self.name, await self._pipeline.metrics())
            except DiffuspecError as error:
                logger.warning("%s cannot tell its series: %s", self.name, error)
            await asyncio.sleep(_METRICS_SECONDS)

    async def _announce(self) -> None:
        pipeline = self._pipeline
        actor = pipeline.coordinator.actor
        self._num_requests = await pipeline.num_requests()
        member = Member(
            name=self.name,
            address=pipeline.address,
            security=pipeline.security,
            info=actor.ready.info if actor is not None else None,
            accepts_requests=self._options.accepts_requests and not self._is_ending,
            num_requests=self._num_requests,
            reason=pipeline.coordinator.problem,
        )
        if await self._tell("announce", member):
            await self._tell("announce_files", read_files(self._target))

    async def _tell(self, method: str, *arguments: object) -> Any:
        """Call the directory; None if it fails. Serve restarts a lost directory."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                return await getattr(self._directory, method).remote(*arguments)
        except (RayError, RayServeException, TimeoutError) as error:
            log_problem("the directory did not answer", error)
            return None
