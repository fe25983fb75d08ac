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
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from benchmarks.cluster.documents import run_alone, run_on_head
from benchmarks.cluster.machines import machines
from benchmarks.cluster.redis import redis
from benchmarks.cluster.service import ROLES, Cluster
from benchmarks.cluster.trial import HEAD, two_ranks, under_load, without_redis
from diffuspec.cli.command import Command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(cls=Command)
def main(
    with_redis: Annotated[
        bool,
        typer.Option("--redis/--no-redis", help="Without: only lose a head that has no Redis."),
    ] = True,
) -> None:
    """Cut machines of a cluster off, and print what it cost."""
    began = time.monotonic()

    def tell(what: str) -> None:
        typer.echo(f"{time.monotonic() - began:.0f} s: {what}", err=True)

    with machines([*ROLES]) as made:
        if with_redis:
            with redis() as store:
                is_right = _lose_all(Cluster(made, store), tell)
        else:
            is_right = _lose_head(Cluster(made, None), tell)
    tell("done")
    raise typer.Exit(int(not is_right))


def _lose_all(cluster: Cluster, tell: Callable[[str], None]) -> bool:
    """Run the page's commands, and lose links and machines; return whether all was right."""

    def follow(ran: Iterator[tuple[str, str]]) -> bool:
        problems = []
        for command, problem in ran:
            tell(f"{problem or 'as documented'}: {command}")
            problems.append(problem)
        return not any(problems)

    is_right = follow(run_alone(cluster.machines["front1"]))
    cluster.start()
    tell("all machines run Ray")
    cluster.deploy(ranks=2)
    tell("a verifier of two ranks, each on a machine of its own, serves")
    typer.echo(HEAD)
    is_right &= asyncio.run(two_ranks(cluster))
    cluster.deploy(ranks=1)
    tell("a verifier of one rank serves")
    is_right &= follow(run_on_head(cluster.machines["head"]))
    return asyncio.run(under_load(cluster)) and is_right


def _lose_head(cluster: Cluster, tell: Callable[[str], None]) -> bool:
    cluster.start()
    cluster.deploy(ranks=1)
    tell("a verifier of one rank serves")
    typer.echo(HEAD)
    return asyncio.run(without_redis(cluster))


if __name__ == "__main__":
    app()
