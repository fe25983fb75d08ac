"""`python -m benchmarks.cluster`: what lost links and machines cost clients of a cluster.

Five machines, which are namespaces of this one, run the service of the embedded pair as
docs/deployment.md says, and the commands of that page. Two clients stream answers through one of
its two addresses while links and machines are lost. Every answer is compared with one that was made
without drafts. Needs root, iproute2, util-linux and redis-server; takes ten minutes on two idle
cores. Exit status 1: a wrong token, a command of the page that fails, or a service that stays away.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import typer

from benchmarks.cluster.documents import run_alone, run_on_head
from benchmarks.cluster.machines import machines
from benchmarks.cluster.redis import redis
from benchmarks.cluster.service import ROLES, Cluster
from benchmarks.cluster.trial import HEAD, two_ranks, under_load
from diffuspec.cli.command import Command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def main() -> None:
    """Cut machines of a cluster off, and print what it cost."""
    began, is_right = time.monotonic(), True

    def tell(what: str) -> None:
        typer.echo(f"{time.monotonic() - began:.0f} s: {what}", err=True)

    def follow(ran: Iterator[tuple[str, str]]) -> bool:
        problems = []
        for command, problem in ran:
            tell(f"{problem or 'as documented'}: {command}")
            problems.append(problem)
        return not any(problems)

    with machines([*ROLES]) as made, redis() as store:
        is_right &= follow(run_alone(made["front1"]))
        cluster = Cluster(made, store)
        cluster.start()
        tell("all machines run Ray")
        cluster.deploy(ranks=2)
        tell("a verifier of two ranks, each on a machine of its own, serves")
        typer.echo(HEAD)
        is_right &= asyncio.run(two_ranks(cluster))
        cluster.deploy(ranks=1)
        tell("a verifier of one rank serves")
        is_right &= follow(run_on_head(made["head"]))
        is_right &= asyncio.run(under_load(cluster))
    tell("done")
    if not is_right:
        raise typer.Exit(1)


if __name__ == "__main__":
    app()
