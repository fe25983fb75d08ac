"""Attacks services twice while other clients ask, and measures how long these wait.

    python -m benchmarks.abuse                     diffuspec serve, then make serve
    python -m benchmarks.abuse --service serve --only forms --only prompts

Starts each service with API keys, and ends it by SIGTERM in the middle of an attack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from benchmarks.abuse.attack import Attack
from benchmarks.abuse.checks import failures
from benchmarks.abuse.keyed_service import MAX_END_SECONDS, started_with_keys
from benchmarks.abuse.report import lines, to_markdown, to_rich
from benchmarks.abuse.run import Run, attack_twice, attacks, under_attack
from benchmarks.progress import progress
from benchmarks.service import ServiceKind
from diffuspec.bench.output import make_folder
from diffuspec.cli.command import Command
from diffuspec.core.errors import ConfigError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Services = Annotated[
    list[ServiceKind] | None,
    typer.Option("--service", help="What to attack: diffuspec serve, or Ray Serve. Default: both."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="Only attacks with this in their name; may be repeated. Default: all."
    ),
]
Out = Annotated[Path, typer.Option(help="Folder for logs and tables.", metavar="DIR")]


@app.command(cls=Command)
def main(service: Services = None, only: Only = None, out: Out = Path("runs/abuse")) -> None:
    """Attack services; print the answers. Exit status 1: a wrong answer, or a bound not kept."""
    chosen = _chosen(only or [""])
    make_folder(out)
    console, printed, reasons = Console(stderr=True), Console(), []
    for kind in service or list(ServiceKind):
        with progress(kind, console) as say:
            run = uvloop.run(_run(kind, chosen, out, say))
        (out / f"{kind}.md").write_text(to_markdown(run) + "\n", encoding="utf-8")
        printed.print(to_rich(run), *lines(run), sep="\n", markup=False)
        reasons += [f"{kind}: {reason}" for reason in failures(run, MAX_END_SECONDS[kind])]
    for reason in reasons:
        printed.print(f"failed: {reason}", soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(int(bool(reasons)))


def _chosen(texts: Sequence[str]) -> Sequence[Attack]:
    """Return the attacks whose names contain one of the texts. Raises ConfigError without any."""
    every = attacks()
    for text in texts:
        if not any(text in attack.name for attack in every):
            names = ", ".join(attack.name for attack in every)
            raise ConfigError(f"no attack has {text!r:.80} in its name; they are: {names}")
    return [attack for attack in every if any(text in attack.name for text in texts)]


async def _run(
    kind: ServiceKind, chosen: Sequence[Attack], folder: Path, say: Callable[[str], None]
) -> Run:
    run = Run(kind)
    say("starts")
    async with started_with_keys(kind, folder) as keyed:
        await attack_twice(keyed.clients, chosen, run, say)
        say("ends under attack")
        lasting = [attack for attack in chosen if not attack.is_slow]
        async with under_attack(keyed.clients, lasting):
            run.end_seconds, run.end_problem = await keyed.end()
    return run


if __name__ == "__main__":
    app()
