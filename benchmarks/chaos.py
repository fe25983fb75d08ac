"""Kill the processes of a service on Ray Serve while it answers, and show how it recovers.

    python -m benchmarks.chaos http://127.0.0.1:8000 --rounds 3

The service must run on this machine, without API keys and without other clients. Every answer is
compared with an earlier one that was made without drafts; an interrupted answer must be a prefix of
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import httpx2
import psutil
import typer

from benchmarks.recoveries import Recovery, Tokens, table
from deploy.processes import listeners, raylet_of
from diffuspec.bench.http_client import HttpClient
from diffuspec.bench.questions import load_questions
from diffuspec.cli.command import Command
from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import DiffuspecError, WorkerError
from diffuspec.core.types import Prompt
from diffuspec.pairs.tiny import QUESTIONS


class Kind(StrEnum):
    """What can be killed."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"
    PATH_SCORER = "path-scorer"
    COORDINATOR = "coordinator"
    PIPELINE = "pipeline"
    INGRESS = "ingress"
    DIRECTORY = "directory"
    PROXY = "proxy"
    HAPROXY = "haproxy"
    HAPROXY_MANAGER = "haproxy-manager"
    CONTROLLER = "controller"


PROCESSES = {  # beginnings of process titles; HAProxy sets none
    Kind.VERIFIER: "ray::VerifierRank",
    Kind.DRAFTER: "ray::DrafterActor",
    Kind.PATH_SCORER: "ray::PathScorerActor",
    Kind.COORDINATOR: "ray::CoordinatorActor",
    Kind.PIPELINE: "ray::ServeReplica:diffuspec:Pipeline",
    Kind.INGRESS: "ray::ServeReplica:diffuspec:Ingress",
    Kind.DIRECTORY: "ray::ServeReplica:diffuspec:Directory",
    Kind.PROXY: "ray::ProxyActor",
    Kind.HAPROXY_MANAGER: "ray::HAProxyManager",
    Kind.CONTROLLER: "ray::ServeController",
}
SAMPLING: Mapping[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 1694, "ignore_eos": True}

_NUM_PROMPTS = 12
_MAX_SECONDS = 300.0  # time for all roles to be serving again
_POLL_SECONDS = 0.1

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _is_of(process: psutil.Process, kind: Kind) -> bool:
    """Return whether a process is of a kind. Raises psutil.NoSuchProcess if it has ended."""
    if kind is Kind.HAPROXY:
        return str(process.name()) == kind
    return " ".join(process.cmdline()).startswith(PROCESSES[kind])


@dataclass
class Answers:
    """Counts of complete and broken answers."""

    num_whole: int = 0
    wrong: list[str] = field(default_factory=list)
    # broken streams, by the kind of process killed last
    broken: Counter[str] = field(default_factory=Counter)
    silences: list[float] = field(
        default_factory=list
    )  # seconds without a token before each one's error


class Load:
    """Clients that stream one answer after the other, and retry broken ones."""

    def __init__(
        self, client: HttpClient, expected: Sequence[tuple[Prompt, str]], max_tokens: int
    ) -> None:
        """`expected`: the right answer to each prompt."""
        self.answers, self.tokens = Answers(), Tokens()
        self.last_fault = ""
        self._client, self._expected, self._max_tokens = client, expected, max_tokens

    @contextlib.asynccontextmanager
    async def running(self, num_streams: int) -> AsyncIterator[None]:
        """Stream answers until the context ends; the answers in progress are then finished."""
        asked = itertools.cycle(self._expected)
        askers = [asyncio.create_task(self._ask_always(asked)) for _ in range(num_streams)]
        try:
            yield
        finally:
            self.tokens.is_over = True
            await asyncio.gather(*askers)

    async def _ask_always(self, asked: Iterator[tuple[Prompt, str]]) -> None:
        times, backoff = self.tokens.asked(), Backoff(0.1, 1.0)
        for prompt, expected in asked:
            while not self.tokens.is_over and not await self._ask(prompt, expected, times):
                await asyncio.sleep(backoff.failed())
            if self.tokens.is_over:
                return
            backoff.succeeded()

    async def _ask(self, prompt: Prompt, expected: str, times: list[float]) -> bool:
        """Stream one answer; return whether it is complete."""
        text, began = "", time.monotonic()
        try:
            async for part in self._client.stream(prompt, self._max_tokens):
                text += part.text
                if part.num_tokens:
                    self.tokens.came(times, part.num_tokens)
        except DiffuspecError:
            self.answers.broken[self.last_fault] += 1
            self.answers.silences.append(time.monotonic() - max(began, times[-1]))
            if not expected.startswith(text):
                self.answers.wrong.append(text)
            return False
        self.answers.num_whole += 1
        if text != expected:
            self.answers.wrong.append(text)
        return True


def prompts() -> list[Prompt]:
    """Return the prompts to send."""
    questions = load_questions(QUESTIONS)
    chosen = questions[:: len(questions) // _NUM_PROMPTS]
    return [[{"role": "user", "content": one.turns[0]}] for one in chosen]


class Service:
    """The service in the state in which it was found; checks whether it has recovered."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        """Raises WorkerError if the service does not run on this machine."""
        self._client = client
        self._port = client.base_url.port or 80
        raylet = raylet_of(self._port)
        if raylet is None:
            raise WorkerError(f"no process of Ray listens on port {self._port} of this machine")
        self._raylet = raylet
        self._numbers = {kind: len(self.processes(kind)) for kind in Kind}
        self._num_healthy = 0

    @property
    def kinds(self) -> list[Kind]:
        """Return the kinds of processes that can be killed."""
        return [kind for kind, number in self._numbers.items() if number]

    def processes(self, kind: Kind) -> set[int]:
        """Return the present processes of a kind."""
        # An HAProxy that is only finishing its last requests does not listen.
        is_proxy = kind is Kind.HAPROXY
        candidates = listeners(self._port) if is_proxy else self._raylet.children(True)
        found = set()
        for process in candidates:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if _is_of(process, kind):
                    found.add(process.pid)
        return found

    async def look(self) -> None:
        """Record how many roles are healthy. Raises WorkerError if not all are."""
        found = await self._ready()
        if found.get("status") != "ready":
            raise WorkerError(f"the service must be whole at first, /ready says {found}")
        self._num_healthy = int(found["healthy_roles"])

    async def is_whole_without(self, killed: int) -> bool:
        """Return whether every process and every role is back."""
        present = {kind: self.processes(kind) for kind in self.kinds}
        if any(len(present[kind]) != self._numbers[kind] for kind in self.kinds):
            return False
        if any(killed in pids for pids in present.values()):
            return False
        found = await self._ready()
        return found.get("status") == "ready" and found["healthy_roles"] == self._num_healthy

    async def _ready(self) -> dict[str, Any]:
        with contextlib.suppress(httpx2.HTTPError, ValueError):
            found: dict[str, Any] = (await self._client.get("/ready")).json()
            return found
        return {}


async def kill_all(
    service: Service, load: Load, kinds: Sequence[Kind], rounds: int, rng: random.Random
) -> list[Recovery]:
    """In each round kill one process of each kind, in random order, and wait for the recovery."""
    recoveries = []
    for kind in [one for _ in range(rounds) for one in rng.sample(kinds, len(kinds))]:
        await load.tokens.more(200)
        victim = rng.choice(sorted(service.processes(kind)))
        load.last_fault, began = kind, time.monotonic()
        psutil.Process(victim).kill()
        async with asyncio.timeout(_MAX_SECONDS):
            while not await service.is_whole_without(victim):
                await asyncio.sleep(_POLL_SECONDS)
        recoveries.append(Recovery(kind, began, time.monotonic()))
        typer.echo(f"{kind}: whole after {recoveries[-1].ended - began:.1f} s", err=True)
    await load.tokens.more(200)  # ends the waits that belong to the last recovery
    return recoveries


async def study(
    url: str, kinds: Sequence[Kind], streams: int, rounds: int, max_tokens: int, seed: int
) -> tuple[list[Recovery], Load]:
    """Record the answers without drafts, then kill under load. Raises WorkerError, TimeoutError.

    kinds: kinds to kill; (): all.
    """
    async with (
        HttpClient(url, speculation="off", sampling=SAMPLING) as plain,
        HttpClient(url, sampling=SAMPLING) as client,
        httpx2.AsyncClient(base_url=url, timeout=10.0, trust_env=False) as control,
    ):
        expected = [
            (prompt, "".join([part.text async for part in plain.stream(prompt, max_tokens)]))
            for prompt in prompts()
        ]
        service = Service(control)
        await service.look()
        load = Load(client, expected, max_tokens)
        async with load.running(streams):
            chosen = kinds or service.kinds
            recoveries = await kill_all(service, load, chosen, rounds, random.Random(seed))
        return recoveries, load


@app.command(cls=Command)
def main(
    url: Annotated[str, typer.Argument(help="URL of the service, which must run on this machine.")],
    kill: Annotated[list[Kind] | None, typer.Option(help="What to kill; default: all.")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of times to kill each kind of process.")
    ] = 1,
    streams: Annotated[int, typer.Option(min=1, help="Number of concurrent answers.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of each answer, in tokens.")] = 160,
    seed: Annotated[
        int, typer.Option(help="Seed for the order of the kills and the choice of processes.")
    ] = 0,
) -> None:
    """Kill processes of a service under load; print what it cost. Exit status 1: a wrong token."""
    recoveries, load = asyncio.run(study(url, kill or (), streams, rounds, max_tokens, seed))
    answers = load.answers
    typer.echo(table(recoveries, load.tokens))
    broken = ", ".join(f"{number} at {kind}" for kind, number in answers.broken.items()) or "none"
    typer.echo(
        f"{answers.num_whole} answers, {len(answers.wrong)} of them with a wrong token; "
        f"broken off or refused, and asked again: {broken}"
    )
    raise typer.Exit(1 if answers.wrong else 0)


if __name__ == "__main__":
    app()
