"""Links and machines of a cluster are lost while clients stream answers: what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import typer

from benchmarks.chaos import SAMPLING, Load, prompts
from benchmarks.cluster.service import ENVIRONMENT, FRONTS, Cluster
from benchmarks.recoveries import Recovery
from diffuspec.bench.http_client import HttpClient
from diffuspec.core.errors import WorkerError

_MAX_TOKENS = 200
_NUM_STREAMS = 2
_NUM_ANSWERS = 12  # asked of the verifier of two ranks, which are slow on two cores
_FEW_TOKENS = 60  # tokens of each such answer
_BLIP_SECONDS = 10.0
_AWAY_SECONDS = 20.0  # until a machine that was lost is started again
_HEADLESS_SECONDS = 75.0  # longer than raylets wait for a head
_MAX_SECONDS = 180.0  # until the service answers as before
HEAD = (
    "| what was done | an answer waits | whole again | broken off or refused | wrong | seen |\n"
    "|---|---|---|---|---|---|"
)


class Trial:
    """A cluster under load, and the table of what was done to it."""

    def __init__(self, cluster: Cluster, entry: str, load: Load) -> None:
        """`entry`: the machine through which the clients ask."""
        self.cluster, self.machines = cluster, cluster.machines
        self._entry, self._load = entry, load
        self.num_failed = 0  # faults after which the service did not come back
        self._num_broken = self._num_wrong = 0

    async def fault(self, what: str, do: Callable[[], str], state: str = "ready") -> None:
        """Do something; wait until tokens come and the service is in a state; print a row.

        `do` returns what is to be seen of it.
        """
        await self._load.tokens.more(100)
        began = time.monotonic()
        try:
            seen = await asyncio.to_thread(do)
        except WorkerError as error:
            seen, self.num_failed = str(error), self.num_failed + 1
        is_whole = await self._becomes(state)
        row = Recovery(what, began, time.monotonic())
        wait = self._load.tokens.longest_wait(row)
        whole = f"{row.ended - row.began:.1f} s" if state == "ready" else ""
        if not is_whole:
            self.num_failed += 1
            whole = f"not within {_MAX_SECONDS:.0f} s"
        self.tell(what, f"{wait:.1f} s", whole, seen)

    async def _becomes(self, state: str) -> bool:
        """Wait until the service is in a state and tokens come; return whether it does in time."""
        try:
            async with asyncio.timeout(_MAX_SECONDS):
                while await asyncio.to_thread(self.cluster.state, self._entry) != state:
                    await asyncio.sleep(0.5)
                await self._load.tokens.more(100)
        except TimeoutError:
            return False
        return True

    def tell(self, what: str, wait: str, whole: str, seen: str) -> None:
        """Print a row, with what was broken and wrong since the last one."""
        answers = self._load.answers
        silences, wrong = answers.silences[self._num_broken :], len(answers.wrong)
        broken = f"{len(silences)}, after {max(silences):.1f} s at most" if silences else "0"
        typer.echo(f"| {what} | {wait} | {whole} | {broken} | {wrong - self._num_wrong} | {seen} |")
        self._num_broken, self._num_wrong = len(answers.silences), wrong

    def blip(self, role: str) -> str:
        """Take the link of a role's machine down for ten seconds."""
        machine, before = self.cluster.machine_of(role), self.cluster.processes(role)
        machine.cut()
        time.sleep(_BLIP_SECONDS)
        machine.mend()
        time.sleep(_BLIP_SECONDS)
        after = self.cluster.processes(role)
        return "reconnected" if after == before else f"replaced: {before}, {after}"

    def lose(self, name: str, seen: str = "") -> str:
        self.machines[name].end()
        return seen

    def start(self, name: str) -> str:
        self.machines[name].start()
        self.cluster.join(name)
        return ""

    def cut_head(self) -> str:
        head = self.machines["head"]
        head.cut()
        time.sleep(_BLIP_SECONDS)
        head.mend()
        return ""

    def restart_head(self) -> str:
        """Lose the head and start it again; then lose a drafter, which takes a head to replace."""
        self.machines["head"].end()
        time.sleep(_AWAY_SECONDS)
        self.start("head")
        self._kill("drafter")
        return "a drafter that was killed then was replaced"

    def _kill(self, role: str) -> None:
        before = self.cluster.processes(role)
        [machine] = [self.machines[name] for name in before]
        [pid] = before[machine.name]
        machine.run(f"kill -9 {pid}")
        ends_at = time.monotonic() + _MAX_SECONDS
        while self.cluster.processes(role) in ({}, before):
            if time.monotonic() > ends_at:
                raise WorkerError(f"the {role} that was killed is not replaced")
            time.sleep(0.5)

    async def isolate(self, name: str) -> None:
        """Take a machine's link down until the service is whole without it, then mend it all."""
        machine = self.machines[name]
        what = "link of the machine of coordinator, replica and an ingress down until then"
        await self.fault(what, lambda: machine.cut() or "")  # type: ignore[func-returns-value]
        machine.mend()
        await self.fault("that machine starts Ray again", lambda: self._rejoin([name]))

    def _rejoin(self, names: list[str]) -> str:
        for name in names:
            self.machines[name].run(f"{ENVIRONMENT}; ray stop --force")
        self.cluster.join_all(names)
        return ""

    def isolate_head(self) -> str:
        """Take the head's link down for longer than the others go on, and start them again."""
        head = self.machines["head"]
        head.cut()
        seconds = self._seconds_of_tokens(_HEADLESS_SECONDS)
        head.mend()
        up = [name for name, machine in self.machines.items() if machine.is_up]
        self._rejoin([name for name in up if name != "head"])
        return f"tokens came for {seconds:.0f} s; then all nodes were started again"

    def forget(self) -> str:
        """Lose the head with all that it knew; start all machines and the service again."""
        self.machines["head"].end()
        seconds = self._seconds_of_tokens(_HEADLESS_SECONDS)
        for name in self.machines:
            self.machines[name].end()
            self.machines[name].start()
        self.cluster.start()
        self.cluster.deploy(ranks=1)
        return f"tokens came for {seconds:.0f} s; then all was started and deployed again"

    def _seconds_of_tokens(self, seconds: float) -> float:
        """Wait; return until when tokens came."""
        began = last = time.monotonic()
        number = self._load.tokens.number
        while time.monotonic() - began < seconds:
            time.sleep(0.5)
            if self._load.tokens.number > number:
                number, last = self._load.tokens.number, time.monotonic()
        return last - began


async def two_ranks(cluster: Cluster) -> bool:
    """Compare answers of a verifier of two ranks; return whether all are right."""
    async with _loaded(cluster, _FEW_TOKENS) as (trial, load):
        while load.answers.num_whole < _NUM_ANSWERS:
            await load.tokens.more(10)
        where = " and ".join(cluster.processes("verifier"))
        trial.tell("none: two ranks on two machines", "", "", f"ranks on {where}")
    return _is_right(load) and not trial.num_failed


async def under_load(cluster: Cluster) -> bool:
    """Lose links and machines, one after the other; return whether all answers are right."""
    async with _loaded(cluster) as (trial, load):
        for role in ("drafter", "verifier", "coordinator"):
            what = f"link of the {role}'s machine down for 10 s"
            await trial.fault(what, lambda role=role: trial.blip(role))  # type: ignore[misc]
        await trial.fault("drafter's machine lost", lambda: trial.lose("drafter1"), "degraded")
        verifier = cluster.machine_of("verifier").name
        what = "verifier's machine lost, too; there is room elsewhere"
        without = lambda: trial.lose(verifier, "answers without drafts")  # noqa: E731
        await trial.fault(what, without, "degraded")
        await trial.fault("drafter's machine back", lambda: trial.start("drafter1"))
        await trial.fault("link of the head down for 10 s", trial.cut_head)
        what = f"head lost; started again after {_AWAY_SECONDS:.0f} s"
        await trial.fault(what, trial.restart_head)
        await trial.isolate(cluster.machine_of("coordinator").name)
        what = f"link of the head down for {_HEADLESS_SECONDS:.0f} s"
        await trial.fault(what, trial.isolate_head)
    return _is_right(load) and not trial.num_failed


async def without_redis(cluster: Cluster) -> bool:
    """Lose a head that keeps its state itself; return whether all answers are right."""
    async with _loaded(cluster) as (trial, load):
        what = f"head without a Redis lost; all started again after {_HEADLESS_SECONDS:.0f} s"
        await trial.fault(what, trial.forget)
    return _is_right(load) and not trial.num_failed


@contextlib.asynccontextmanager
async def _loaded(
    cluster: Cluster, max_tokens: int = _MAX_TOKENS
) -> AsyncIterator[tuple[Trial, Load]]:
    """Stream answers through the address that is not the coordinator's."""
    [entry] = set(FRONTS) - {cluster.machine_of("coordinator").name}
    key, url = cluster.api_key, cluster.url(entry)
    async with (
        HttpClient(url, key, speculation="off", sampling=SAMPLING) as plain,
        HttpClient(url, key, sampling=SAMPLING) as client,
    ):
        expected = [
            (prompt, "".join([part.text async for part in plain.stream(prompt, max_tokens)]))
            for prompt in prompts()
        ]
        load = Load(client, expected, max_tokens)
        async with load.running(_NUM_STREAMS):
            yield Trial(cluster, entry, load), load


def _is_right(load: Load) -> bool:
    answers = load.answers
    typer.echo(f"{answers.num_whole} answers, {len(answers.wrong)} wrong", err=True)
    return not answers.wrong
