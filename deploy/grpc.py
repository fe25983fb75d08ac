"""`python -m deploy.grpc`: one role of a pipeline in this process, for clusters without Ray."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from actors.placement_settings import RoleSettings
from actors.settings import PipelineConfig, load_pipeline
from deploy import role_process
from deploy.addresses import Addresses, Role
from deploy.role_process import serve
from deploy.tokens import TOKEN_VARIABLE, read_token
from diffuspec.cli.command import EXIT_FAILURE, Server
from diffuspec.cli.options import LogFormat
from diffuspec.cli.parameters import takes_fields
from diffuspec.telemetry import logs

EXAMPLE = f"""
The embedded pair on one machine, each command in a terminal of its own. Every role waits for the
roles that it needs, then prints its address as the only line on stdout.

\b
  export {TOKEN_VARIABLE}=$(python -c 'import secrets; print(secrets.token_urlsafe(32))')
  alias role='python -m deploy.grpc --config deploy/pipeline.yaml --role'
  role verifier --port 7001
  role path_scorer --port 7002 --verifier 127.0.0.1:7001
  role drafter --port 7003 --verifier 127.0.0.1:7001 --path-scorer 127.0.0.1:7002
  role coordinator --port 7000 --verifier 127.0.0.1:7001 --drafter 127.0.0.1:7003

Prompts go to the coordinator: see diffuspec.rpc.client.coordinator.RemoteCoordinator.

If placement.verifier.tensor_parallel is above 1, rank 0 prints a meeting point first. Start the
other ranks on the same machine with --rank N --meeting-point HOST:PORT.

To listen beyond loopback, configure rpc.tls. SIGTERM and Ctrl-C let running requests finish.

Exit codes: 0 after SIGTERM or Ctrl-C, 1 for a failure while serving, 2 for a wrong option or
configuration.
"""

_NONE = Addresses()

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_Role = Annotated[Role, typer.Option(help="The role to serve.")]
_Config = Annotated[
    Path,
    typer.Option(metavar="FILE.yaml", help="The pipeline's configuration, such as deploy/*.yaml."),
]
_Check = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Check the health of the role at this address: exit with 0 if it is serving, "
        "else with 1.",
    ),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"The deployment's token. Default: rpc.token_file, or the variable {TOKEN_VARIABLE}.",
    ),
]


@app.command(cls=Server, epilog=EXAMPLE)
@takes_fields("addresses", Addresses)
def run(
    role: _Role,
    config: _Config,
    addresses: Addresses = _NONE,
    check: _Check = "",
    token_file: _TokenFile = None,
    log_format: LogFormat = None,
) -> None:
    """Serve one role of a pipeline over gRPC until SIGTERM."""
    logs.configure(log_format)
    pipeline = load_pipeline(config)
    token = read_token(pipeline, token_file)
    if check:
        is_serving = asyncio.run(role_process.check(role, pipeline, token, check))
        if not is_serving:
            typer.echo(f"error: no {role} serves at {check}", err=True)
        raise typer.Exit(0 if is_serving else EXIT_FAILURE)
    if role == "coordinator" and not addresses.port:
        addresses = replace(addresses, port=pipeline.rpc.port)
    _prepare_process(_role_settings(role, pipeline, addresses))
    asyncio.run(serve(role, pipeline, token, addresses, announce=typer.echo))


def _role_settings(role: Role, config: PipelineConfig, addresses: Addresses) -> RoleSettings:
    if role == "drafter":
        return addresses.served_drafter(config).settings
    placement = config.placement
    settings: dict[str, RoleSettings] = {
        "coordinator": placement.coordinator,
        "path_scorer": placement.path_scorer,
        "verifier": placement.verifier,
    }
    return settings[role]


def _prepare_process(role: RoleSettings) -> None:
    """Set the environment of this process, before torch reads it on import."""
    os.environ["OMP_NUM_THREADS"] = str(role.num_threads)
    if not role.num_gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


if __name__ == "__main__":
    app()
