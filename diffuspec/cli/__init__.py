"""The `diffuspec` command: reads options and files, calls the library, shows what comes back.

What is heavy is imported inside the commands, so that help and mistakes answer at once.
"""

from __future__ import annotations

import io
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from diffuspec.cli import bench, demo, generate, ngram
from diffuspec.cli.problems import Commands

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Lossless speculative decoding: a diffusion language model drafts, the target verifies.",
    epilog="Start with [bold]diffuspec demo[/bold]; every command explains itself with --help.",
)
app.command("generate", epilog=generate.EXAMPLES)(generate.run)
app.command("demo")(demo.run)
app.command("bench", epilog=bench.EXAMPLES)(bench.run)
_ngram = typer.Typer(no_args_is_help=True, help="N-gram models over token ids.")
_ngram.command("build", epilog=ngram.EXAMPLES)(ngram.run)
app.add_typer(_ngram, name="ngram")


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"diffuspec {version('diffuspec')}")
        except PackageNotFoundError:  # run from a checkout that is not installed
            typer.echo("diffuspec (not installed)")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Take the options that come before a command; their callbacks do the work."""


def main() -> None:
    """Run the command line of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a narrow encoding lacks becomes a ?
            stream.reconfigure(errors="replace")
    app()
