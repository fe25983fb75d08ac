"""The commands of `diffuspec`.

Heavy modules are imported inside the commands, so that help and usage errors appear at once.
"""

from __future__ import annotations

from typing import Annotated

import typer

from diffuspec.cli import (
    audit,
    bench,
    cluster,
    demo,
    draft_server,
    drafter,
    env,
    generate,
    keys,
    load,
    model,
    model_explain,
    ngram,
    plan,
    serve,
)
from diffuspec.cli.command import Command, Commands, Server, brief
from diffuspec.core.version import own_version

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Lossless speculative decoding: a diffusion language model drafts, the target verifies.",
    epilog="Start with [bold]diffuspec demo[/bold]. Every command has --help.",
)
app.command("generate", cls=brief(*generate.USUAL), epilog=generate.EXAMPLES)(generate.run)
app.command("serve", cls=brief(*serve.USUAL, base=Server), epilog=serve.EXAMPLES)(serve.run)
app.command("draft-server", cls=Server, epilog=draft_server.EXAMPLES)(draft_server.run)
app.command("demo", cls=Command)(demo.run)
app.command("bench", cls=Command, epilog=bench.EXAMPLES)(bench.run)
app.command("audit", cls=Command, epilog=audit.EXAMPLES)(audit.run)
app.command("load", cls=Command, epilog=load.EXAMPLES)(load.run)
app.command("batch", cls=Server, **cluster.FORWARDED)(cluster.batch)
app.command("env", cls=Command, epilog=env.EXAMPLES)(env.run)
_plan = typer.Typer(cls=Commands, invoke_without_command=True, epilog=plan.EXAMPLES)
_plan.callback()(plan.run)
_plan.command("record", cls=Command)(plan.record)
app.add_typer(_plan, name="plan")
_ngram = typer.Typer(cls=Commands, no_args_is_help=True, help="N-gram models over token ids.")
_ngram.command("build", cls=Command, epilog=ngram.EXAMPLES)(ngram.run)
app.add_typer(_ngram, name="ngram")
_model = typer.Typer(cls=Commands, no_args_is_help=True, help="Model directories.")
_model.command("import", cls=Command, epilog=model.EXAMPLES)(model.run)
_model.command("explain", cls=Command, epilog=model_explain.EXAMPLES)(model_explain.run)
app.add_typer(_model, name="model")
_drafter = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Train drafters and draft heads for any target."
)
_drafter.command("train", cls=Command, epilog=drafter.TRAIN_EXAMPLES)(drafter.train)
_drafter.command("answers", cls=Command, epilog=drafter.ANSWERS_EXAMPLES)(drafter.answers)
_drafter.command("evaluate", cls=Command, epilog=drafter.EVALUATE_EXAMPLES)(drafter.evaluate)
app.add_typer(_drafter, name="drafter")
_ray = typer.Typer(cls=Commands, no_args_is_help=True, help="Services on a Ray cluster.")
_ray.command("serve", cls=Server, **cluster.FORWARDED)(cluster.serve)
_ray.command("draft-pool", cls=Server, **cluster.FORWARDED)(cluster.draft_pool)
app.add_typer(_ray, name="ray")
_keys = typer.Typer(cls=Commands, no_args_is_help=True, help="API keys of `diffuspec serve`.")
_keys.command("add", cls=Command, epilog=keys.EXAMPLES)(keys.add)
app.add_typer(_keys, name="keys")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diffuspec {own_version()}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Declare the options that precede the command; their callbacks handle them."""
