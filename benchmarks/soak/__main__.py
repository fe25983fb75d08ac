"""Loads services with many kinds of requests for minutes, and checks that nothing is lost or grows.

    python -m benchmarks.soak             15 minutes for each of four runs
    python -m benchmarks.soak 2 --service serve --clients 8

Starts `diffuspec serve`, and `python -m deploy.serve` with a role killed now and then, once for
each number of clients.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from benchmarks.progress import progress
from benchmarks.service import ServiceKind
from benchmarks.soak.report import failures, tables, to_json
from benchmarks.soak.run import Plan, Run, soak
from diffuspec.bench.output import make_folder
from diffuspec.cli.command import Command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Minutes = Annotated[float, typer.Argument(min=0.05, help="Minutes of load in each run.")]
Services = Annotated[
    list[ServiceKind] | None,
    typer.Option("--service", help="What to load: diffuspec serve, or Ray Serve. Default: both."),
]
Clients = Annotated[
    list[int] | None,
    typer.Option(min=1, max=64, help="Number of clients; may be repeated. Default: 8 and 32."),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="Distinct requests of each kind, for a short run. Default: all."),
]
Seed = Annotated[int, typer.Option(help="Seed of the requests, their order and the kills.")]
Out = Annotated[Path, typer.Option(help="Folder for the logs of the services.", metavar="DIR")]
Json = Annotated[
    Path | None, typer.Option("--json", help="Write a report in JSON, too.", metavar="FILE.json")
]


@app.command(cls=Command)
def main(
    minutes: Minutes = 15.0,
    service: Services = None,
    clients: Clients = None,
    limit: Limit = None,
    seed: Seed = 0,
    out: Out = Path("runs/soak"),
    json_file: Json = None,
) -> None:
    """Load services for minutes; print what was measured. Exit status 1: a check failed."""
    make_folder(out)
    runs: list[Run] = []
    console = Console(stderr=True)
    for kind in service or list(ServiceKind):
        for number in clients or (8, 32):
            plan = Plan(kind, number, 60 * minutes, seed, limit)
            with progress(plan.name, console) as say:
                runs.append(uvloop.run(soak(plan, out, say)))
    if json_file is not None:
        json_file.write_text(json.dumps(to_json(runs), indent=1) + "\n", encoding="utf-8")
    printed = Console()
    for table in tables(runs):
        for part in table.to_rich(printed.width):
            printed.print(part)
    for reason in (reasons := failures(runs)):
        printed.print(f"failed: {reason}", soft_wrap=True, highlight=False, markup=False)
    raise typer.Exit(int(bool(reasons)))


if __name__ == "__main__":
    app()
