"""`python -m deploy.grpc`: one role of a pipeline in this process, for clusters without Ray."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from actors.placement_settings import RoleSettings
from actors.settings import PipelineConfig, load_pipeline
from deploy import role_process
from deploy.role_process import Addresses, Role, serve
from diffuspec.cli.command import EXIT_FAILURE, Server
from diffuspec.core.errors import ConfigError

TOKEN_VARIABLE = "DIFFUSPEC_TOKEN"

EXAMPLE = f"""
The embedded pair on one machine, each command in a terminal of its own. Every role waits for those
that it needs, and prints the address that it serves at, alone on stdout.

\b
  export {TOKEN_VARIABLE}=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')
  alias role='python -m deploy.grpc --config deploy/pipeline.yaml --role'
  role verifier --port 7001
  role path_scorer --port 7002 --verifier 127.0.0.1:7001
  role drafter --port 7003 --verifier 127.0.0.1:7001 --path-scorer 127.0.0.1:7002
  role coordinator --port 7000 --verifier 127.0.0.1:7001 --drafter 127.0.0.1:7003

With placement.verifier.tensor_parallel above 1 the first rank prints a meeting point; start the
others on the same machine with --rank N --meeting-point HOST:PORT.

A health probe is the role's own command with --check HOST:PORT: it ends with 0 if the role there is
serving. RemoteCoordinator of diffuspec.rpc.coordinator_client sends the coordinator prompts.

Off loopback, rpc.tls must be configured. SIGTERM lets running requests finish, then the process
ends with 0. It ends with 1 when it fails while it runs, with 2 when it is asked for what cannot be.
"""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_Role = Annotated[Role, typer.Option(help="Which role this process is.")]
_Config = Annotated[Path, typer.Option(metavar="FILE.yaml", help="The pipeline, as deploy/*.yaml.")]
_Host = Annotated[str, typer.Option(help="Address to listen at.")]
_Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")]
_Verifier = Annotated[str, typer.Option(metavar="HOST:PORT", help="All roles but it need it.")]
_PathScorer = Annotated[str, typer.Option(metavar="HOST:PORT", help="A drafter's scorer.")]
_Drafter = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST:PORT", help="A drafter of the coordinator; repeatable."),
]
_Rank = Annotated[int, typer.Option(min=0, help="A verifier's tensor-parallel rank.")]
_Meeting = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where its ranks meet.")]
_Metrics = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Serve a coordinator's Prometheus series, on loopback."),
]
_Check = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT", help="Serve nothing; end with 0 if the role there is serving, else 1."
    ),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help=f"The deployment's token; by default it is in ${TOKEN_VARIABLE}."
    ),
]


@app.command(cls=Server, epilog=EXAMPLE)
def run(
    role: _Role,
    config: _Config,
    host: _Host = "127.0.0.1",
    port: _Port = 0,
    verifier: _Verifier = "",
    path_scorer: _PathScorer = "",
    drafter: _Drafter = None,
    rank: _Rank = 0,
    meeting_point: _Meeting = "",
    metrics_port: _Metrics = None,
    check: _Check = "",
    token_file: _TokenFile = None,
) -> None:
    """Serve one role of a pipeline over gRPC until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    pipeline, token = load_pipeline(config), read_token(token_file)
    if check:
        is_serving = asyncio.run(role_process.check(role, pipeline, token, check))
        raise typer.Exit(0 if is_serving else EXIT_FAILURE)
    _prepare_process(_role_settings(role, pipeline))
    addresses = Addresses(
        host,
        port,
        verifier,
        path_scorer,
        tuple(drafter or ()),
        rank,
        meeting_point,
        metrics_port,
    )
    asyncio.run(serve(role, pipeline, token, addresses, announce=typer.echo))


def read_token(path: Path | None) -> str:
    """Return the deployment's token, of a file or of the environment. Raises ConfigError."""
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE, "")
    else:
        try:
            token = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the token in {path}: {error}") from error
    if not token:
        raise ConfigError(
            f"a token is needed: set {TOKEN_VARIABLE}, or give --token-file; every role of a "
            "deployment has the same"
        )
    return token


def _role_settings(role: Role, config: PipelineConfig) -> RoleSettings:
    placement = config.placement
    settings: dict[Role, RoleSettings] = {
        "coordinator": placement.coordinator,
        "drafter": placement.drafter,
        "path_scorer": placement.path_scorer,
        "verifier": placement.verifier,
    }
    return settings[role]


def _prepare_process(role: RoleSettings) -> None:
    """Set what libraries read when they are loaded: so this comes before torch is."""
    os.environ["OMP_NUM_THREADS"] = str(role.num_threads)
    if not role.num_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


if __name__ == "__main__":
    app()
