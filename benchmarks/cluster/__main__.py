"""`python -m benchmarks.cluster`: what lost links and machines cost clients of a cluster.

Five machines, which are namespaces of this one, run the service of the embedded pair as
docs/deployment.md says. Two clients stream answers through one of its two addresses meanwhile.
Every answer is compared with one that was made without drafts. Needs root; takes ten minutes on
two idle cores. Exit status 1: a wrong token.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated

import typer

from benchmarks.chaos import SAMPLING, Load, prompts
from benchmarks.cluster.machines import machines
from benchmarks.cluster.service import FRONTS, ROLES, Cluster
from benchmarks.recoveries import Recovery
from diffuspec.bench.http_client import HttpClient
from diffuspec.cli.command import Command
from diffuspec.core.errors import WorkerError

_MAX_TOKENS = 200
_NUM_STREAMS = 2
_BLIP_SECONDS = 10.0
_HEADLESS_SECONDS, _SILENCE_SECONDS = 120.0, 20.0
_MAX_COMMAND_SECONDS = 600.0
_MAX_SECONDS = 180.0  # until the service answers as before
_HEAD = "| what was done | an answer waits | whole again | broken | wrong | seen |\n" + "|---" * 6

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Trial:
    """A cluster under load, and the table of what was done to it."""

    def __init__(self, cluster: Cluster, entry: str, load: Load) -> None:
        """`entry`: the machine through which the clients ask."""
        self.cluster, self.machines = cluster, cluster.machines
        self._entry, self._load = entry, load
        self._num_broken = self._num_wrong = 0
        typer.echo(_HEAD)

    async def fault(self, what: str, do: Callable[[], str], state: str = "ready") -> None:
        """Do something; wait until tokens come and the service is in a state; print a row.

        `do` returns what is to be seen of it.
        """
        await self._load.tokens.more(100)
        began = time.monotonic()
        seen = await asyncio.to_thread(do)
        async with asyncio.timeout(_MAX_SECONDS):
            while await asyncio.to_thread(self.cluster.state, self._entry) != state:
                await asyncio.sleep(0.5)
            await self._load.tokens.more(100)
        row = Recovery(what, began, time.monotonic())
        wait, answers = self._load.tokens.longest_wait(row), self._load.answers
        num_broken, num_wrong = answers.broken.total(), len(answers.wrong)
        broken, wrong = num_broken - self._num_broken, num_wrong - self._num_wrong
        self._num_broken, self._num_wrong = num_broken, num_wrong
        whole = row.ended - row.began
        typer.echo(f"| {what} | {wait:.1f} s | {whole:.1f} s | {broken} | {wrong} | {seen} |")

    def blip(self, role: str) -> str:
        """Take the link of a role's machine down for ten seconds."""
        machine, before = self.cluster.machine_of(role), self.cluster.processes(role)
        machine.cut()
        time.sleep(_BLIP_SECONDS)
        machine.mend()
        time.sleep(_BLIP_SECONDS)
        after = self.cluster.processes(role)
        return "reconnected" if after == before else f"replaced: {before}, {after}"

    def lose(self, *names: str) -> str:
        for name in names:
            self.machines[name].end()
        return ""

    async def lose_head(self) -> None:
        """Lose the head for good, without Redis; print for how long tokens come."""
        self.machines["head"].end()
        began = last = time.monotonic()
        while last - began < _HEADLESS_SECONDS:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    await self._load.tokens.more(10)
            except TimeoutError:
                break
            last = time.monotonic()
        num_wrong = len(self._load.answers.wrong) - self._num_wrong
        seen = f"tokens came for {last - began:.0f} s"
        typer.echo(f"| head lost, without Redis | - | - | - | {num_wrong} | {seen} |")

    def start(self, *names: str) -> str:
        for name in names:
            self.machines[name].start()
            self.cluster.join(name)
        return ""


async def try_all(trial: Trial) -> None:
    """Cut links and machines off, one after the other."""
    cluster = trial.cluster
    for role in ("drafter", "verifier", "coordinator"):
        what = f"link of the {role}'s machine down for 10 s"
        await trial.fault(what, lambda role=role: trial.blip(role))  # type: ignore[misc]
    await trial.fault("drafter's machine lost", lambda: trial.lose("drafter1"), "degraded")
    verifier = cluster.machine_of("verifier").name
    await trial.fault(
        "verifier's machine lost, too; there is room elsewhere",
        lambda: trial.lose(verifier),
        "degraded",
    )
    await trial.fault("drafter's machine back", lambda: trial.start("drafter1"))
    front = cluster.machine_of("coordinator").name
    await trial.fault(
        "machine of coordinator, replica and an ingress lost", lambda: trial.lose(front)
    )
    await trial.fault("link of the head down for 10 s", lambda: _cut_head(trial))
    await trial.lose_head()


def _cut_head(trial: Trial) -> str:
    head = trial.machines["head"]
    head.cut()
    time.sleep(_BLIP_SECONDS)
    head.mend()
    return ""


@contextlib.asynccontextmanager
async def loaded(cluster: Cluster) -> AsyncIterator[Trial]:
    """Stream answers through the address that is not the coordinator's."""
    [entry] = set(FRONTS) - {cluster.machine_of("coordinator").name}
    key, url = cluster.api_key, cluster.url(entry)
    async with (
        HttpClient(url, key, speculation="off", sampling=SAMPLING) as plain,
        HttpClient(url, key, sampling=SAMPLING) as client,
    ):
        expected = [
            (prompt, "".join([part.text async for part in plain.stream(prompt, _MAX_TOKENS)]))
            for prompt in prompts()
        ]
        load = Load(client, expected, _MAX_TOKENS)
        async with load.running(_NUM_STREAMS):
            yield Trial(cluster, entry, load)
        typer.echo(f"\n{load.answers.num_whole} answers, {len(load.answers.wrong)} wrong")
        if load.answers.wrong:
            raise typer.Exit(1)


# what the documents tell a cluster's owner to do first, and what its output has
_DOCUMENTED = {
    "python -m deploy.demo --address auto --repeats 1 --trace ~/t.json": "tokens: yes",
    'echo \'{"prompt": "Once", "max_tokens": 8}\' >~/in.jsonl; '
    "ray job submit --address http://127.0.0.1:8265 -- "
    "python -m deploy.batch --input ~/in.jsonl --output ~/out.jsonl; cat ~/out.jsonl": "choices",
}


def follow_documents(cluster: Cluster) -> None:
    """Run what needs nothing but the cluster. Raises WorkerError."""
    for command, wanted in _DOCUMENTED.items():
        if wanted not in (shown := cluster.on_head(command, _MAX_COMMAND_SECONDS)):
            raise WorkerError(f"{command}: {shown[-2000:]}")
        typer.echo(f"done: {command}", err=True)


async def _run(cluster: Cluster) -> None:
    async with loaded(cluster) as trial:
        await try_all(trial)


@app.command(cls=Command)
def main(
    ranks: Annotated[int, typer.Option(min=1, max=2, help="Ranks of the verifier.")] = 1,
) -> None:
    """Cut machines of a cluster off, and print what it cost."""
    with machines([*ROLES]) as made:
        cluster = Cluster(made, ranks)
        began = time.monotonic()
        cluster.start()
        typer.echo(f"the machines serve after {time.monotonic() - began:.0f} s\n", err=True)
        follow_documents(cluster)
        asyncio.run(_run(cluster))


if __name__ == "__main__":
    app()
