"""`diffuspec load`: measure a running service under load."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from diffuspec.cli import options
from diffuspec.cli.command import parse_numbers
from diffuspec.core.errors import ConfigError

EXAMPLES = """[bold]Examples[/bold]

  diffuspec load http://127.0.0.1:8000
  diffuspec load http://127.0.0.1:8000 --at-a-time 1,8 --rates 2,4 --max-tokens 64
  diffuspec load https://example.org --questions spec_bench.jsonl --out runs/load

The API key is read from DIFFUSPEC_API_KEY.
"""

Url = Annotated[str, typer.Argument(metavar="URL", help="URL of the service, without /v1.")]
AtATime = Annotated[
    str,
    typer.Option(
        help="Numbers of concurrent requests to measure, one after another.", metavar="N,N,..."
    ),
]
Rates = Annotated[
    str,
    typer.Option(
        help="Mean numbers of requests per second to measure; requests arrive at random times.",
        metavar="R,R,...",
    ),
]
Questions = Annotated[
    Path | None,
    typer.Option(
        help="Questions in Spec-Bench's format. Default: the held-out questions of the "
        "embedded pair.",
        metavar="FILE.jsonl",
    ),
]
Repeats = Annotated[
    int,
    typer.Option(
        help="Number of measurements with each number of concurrent requests.", metavar="N", min=1
    ),
]
Out = Annotated[
    Path, typer.Option(help="Folder for JSON results, tables and a plot.", metavar="DIR")
]


def run(
    url: Url,
    at_a_time: AtATime = "1,2,4,8,16",
    rates: Rates = "",
    questions: Questions = None,
    limit: options.Limit = None,
    max_tokens: options.MaxTokens = 64,
    repeats: Repeats = 2,
    rounds: options.Rounds = 6,
    out: Out = Path("runs/load"),
) -> None:
    """Ask a running service, with speculation and without in turns, and compare.

    Keeps each number of requests of --at-a-time in progress, then sends requests at each rate of
    --rates. Exits with 1 if texts differ.
    """
    from rich.console import Console

    from diffuspec.bench.output import make_folder, progress
    from diffuspec.bench.plots import require_matplotlib
    from diffuspec.bench.questions import first_per_family, load_questions
    from diffuspec.bench.report import write_report
    from diffuspec.bench.service_load import measure_service
    from diffuspec.bench.studies.load import LoadPlan, plot_load
    from diffuspec.pairs.tiny import QUESTIONS

    require_matplotlib()
    concurrencies = parse_numbers("--at-a-time", at_a_time, int)
    per_second = parse_numbers("--rates", rates, float)
    if not (concurrencies or per_second):
        raise ConfigError("nothing to measure: give --at-a-time or --rates a number")
    asked = first_per_family(load_questions(questions or QUESTIONS), limit)
    make_folder(out)
    with progress(2 * (len(concurrencies) * repeats + len(per_second))) as advance:
        measuring = measure_service(
            url.rstrip("/").removesuffix("/v1"),
            os.environ.get("DIFFUSPEC_API_KEY"),
            asked,
            LoadPlan(max_tokens, concurrencies, repeats, rounds),
            rates=per_second,
            on_turn=advance,
        )
        load = asyncio.run(measuring)
    lines = [f"{load.model} at {url}; answers that differ: {load.num_different}."]
    if load.rows:
        plot_load(load.rows, out / "load.png")
    write_report(out, "load", load.to_json(), load.tables(), lines, Console())
    raise typer.Exit(int(load.num_different > 0))
