"""An engine in a child process, which is started again when it ends.

    python -m deploy.batches.engine_process      the child: its pipeline is on standard input

The roles of a pipeline run together there, behind the coordinator's gRPC service. An answer whose
process ends goes on in the next one. The child ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from actors.placement_settings import CoordinatorSettings, PlacementSettings
from actors.roles.colocated_verifier import colocated_verifier
from actors.roles.coordinator import CoordinatorActor, Ready
from actors.settings import MAX_MISSES, PipelineConfig, RpcSettings
from actors.supervision.background import first_of
from actors.supervision.supervisor import Supervisor
from diffuspec.core.addresses import LOOPBACK
from diffuspec.core.errors import DiffuspecError, VerifierUnavailableError, WorkerError
from diffuspec.core.losses import Losses
from diffuspec.core.memory import share_heaps
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, RequestOutput
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.client.resumption import ResumedAnswer
from diffuspec.rpc.messages.status import TransportError
from diffuspec.rpc.security import Security, new_token

PYTHON: tuple[str, ...] = (sys.executable,)


@dataclass(frozen=True, slots=True, eq=False)
class RunningEngine:
    """An engine that answers."""

    process: Process
    ready: Ready
    client: RemoteCoordinator


class EngineProcess(Supervisor[RunningEngine]):
    """Keeps an engine in service; an async context manager. Belongs to one event loop."""

    def __init__(self, config: PipelineConfig) -> None:
        super().__init__("the process of the engine")
        verifier = config.placement.verifier
        role = CoordinatorSettings(num_threads=verifier.num_threads)
        placement = PlacementSettings(together=True, coordinator=role)
        rpc = RpcSettings(max_message_bytes=config.rpc.max_message_bytes)
        self._config = config.model_copy(update={"placement": placement, "rpc": rpc})
        self._security = Security(new_token())

    async def __aenter__(self) -> EngineProcess:
        """Start the process. Raises ConfigError, ModelLoadError, VerifierError and WorkerError."""
        await self.start()
        self.supervise()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.halt()
        if self._thing is not None:
            await self.drop(self._thing, "stopped")
        self.close("stopped")

    @property
    def ready(self) -> Ready:
        """What the engine reported when it last started."""
        assert self._thing is not None, "used as a context manager"
        return self._thing.ready

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the outputs of an answer, over as many processes as it takes.

        Raises FatalRequestError if three processes end while they work on it, and
        VerifierUnavailableError if none can be started in time.
        """
        sampling = sampling.with_seed()  # the next process has to draw the same tokens
        engine: RunningEngine | None = None

        async def ask(committed: Sequence[int], losses: Losses) -> AsyncGenerator[RequestOutput]:
            nonlocal engine
            engine = await self._serving()
            parameters = (prompt, sampling, speculation, request_id)
            return engine.client.stream(*parameters, committed, losses.number)

        async def wait_for_another(error: TransportError) -> None:
            assert engine is not None
            async with asyncio.timeout(self._config.deadlines.silence_seconds):
                await self.replaced(engine)

        answer = ResumedAnswer(ask, wait_for_another, request_id)
        async with contextlib.aclosing(answer.stream()) as outputs:
            async for output in outputs:
                yield output

    async def _serving(self) -> RunningEngine:
        try:
            async with asyncio.timeout(self._config.deadlines.start_seconds):
                engine = await self.current()
        except TimeoutError as error:
            raise VerifierUnavailableError(f"{self.name}: {self.problem}") from error
        if engine is None:
            raise VerifierUnavailableError(f"{self.name}: {self.problem}")
        return engine

    async def bring_up(self) -> RunningEngine:
        """Start a process, and connect to it once its models are loaded."""
        config, security = self._config, self._security
        path = os.pathsep.join(filter(None, sys.path))  # it imports from the same places
        threads = str(config.placement.coordinator.num_threads)
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": threads}
        process = await asyncio.create_subprocess_exec(
            *PYTHON, "-m", __name__, stdin=PIPE, stdout=PIPE, env=environment
        )
        try:
            async with asyncio.timeout(config.deadlines.start_seconds):
                ready = await _load(process, config, security)
            client = await RemoteCoordinator.connect(
                ready.address,
                security,
                deadline_seconds=config.deadlines.answer_seconds,
                limits=config.coordinator_limits(),
            )
        except BaseException:
            await _end(process)
            raise
        return RunningEngine(process, ready, client)

    async def watch(self, thing: RunningEngine) -> str:
        return await first_of(_ending(thing.process), self._silence(thing.client))

    async def _silence(self, client: RemoteCoordinator) -> str:
        """Return once MAX_MISSES health checks in a row have failed."""
        seconds, num_misses = self._config.deadlines.health_seconds, 0
        while num_misses < MAX_MISSES:
            await asyncio.sleep(seconds)
            num_misses = 0 if await client.check_health(seconds) else num_misses + 1
        return f"it did not serve {num_misses} times in a row"

    async def drop(self, thing: RunningEngine | None, reason: str) -> None:
        if thing is not None:
            await _end(thing.process)
            await thing.client.close()


async def _load(process: Process, config: PipelineConfig, security: Security) -> Ready:
    """Send a process its pipeline; return what it reports. Raises its error."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(ConnectionError):  # it may have ended: there is no report then
        process.stdin.write(pickle.dumps((config, security)))
        await process.stdin.drain()
    line = await process.stdout.readline()
    if not line:
        raise WorkerError(f"the process of the engine {await _ending(process)} as it loaded")
    report: Ready | DiffuspecError = pickle.loads(b64decode(line))
    if isinstance(report, DiffuspecError):
        raise report
    return report


async def _ending(process: Process) -> str:
    """Wait for the end of a process; return how it ended, as a verb phrase."""
    code = await process.wait()
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


async def _serve(config: PipelineConfig, security: Security, reports: int) -> None:
    """Serve a pipeline in this process; write what it reports to a descriptor, as one line."""
    actor = CoordinatorActor(config, security)
    try:
        report: object = await actor.start(lambda: colocated_verifier(config), LOOPBACK)
    except DiffuspecError as error:
        report = error
    with os.fdopen(reports, "wb") as file:
        file.write(b64encode(pickle.dumps(report)) + b"\n")
    if isinstance(report, Ready):
        await actor.run()


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    share_heaps()
    for number in (signal.SIGINT, signal.SIGTERM):  # they are for the process that started it
        signal.signal(number, signal.SIG_IGN)
    reports = os.dup(1)
    os.dup2(2, 1)
    config, security = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_input, daemon=True).start()
    asyncio.run(_serve(config, security, reports))


if __name__ == "__main__":
    main()
