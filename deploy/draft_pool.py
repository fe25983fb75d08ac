"""`diffuspec ray draft-pool`: draft servers on a Ray cluster, behind one address."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from actors.draft_pool import DraftPool, DraftPoolConfig
from deploy import options
from deploy.local_ray import ray_cluster
from diffuspec.cli.command import Server
from diffuspec.cli.draft_server import (
    NO_SECURITY,
    Listen,
    SecurityOptions,
    takes_security,
)
from diffuspec.cli.signals import end_event
from diffuspec.core.addresses import parse_listen_address
from diffuspec.core.validation import read_yaml, validate
from diffuspec.draft_server.service import check_kind
from diffuspec.pairs import fill_in_draft_server
from diffuspec.rpc.draft_proxy import DraftProxy
from diffuspec.rpc.security import Security, new_token
from diffuspec.rpc.server.server import RoleServer
from diffuspec.telemetry import logs

_POOL = Path(__file__).parent / "draft_pool.yaml"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_Config = Annotated[
    Path,
    typer.Option(
        metavar="FILE.yaml",
        help="The pool's configuration. Default: one to four servers for the embedded pair.",
    ),
]


@app.command(cls=Server)
@takes_security
def run(
    config: _Config = _POOL,
    listen: Listen = "127.0.0.1:9500",
    secured: SecurityOptions = NO_SECURITY,
    address: options.Address = "",
) -> None:
    """Serve drafts with a pool of draft servers that grows and shrinks with the load.

    Engines connect to one address, which is printed once drafts are available. Ctrl-C or SIGTERM
    ends it.
    """
    logs.configure(None)
    host, port = parse_listen_address("--listen", listen)
    security = secured.security()
    security.server_credentials(host)  # raises on a bad configuration before anything starts
    settings = read_pool(config)
    with ray_cluster(address, None):
        asyncio.run(_serve(settings, security, host, port))


def read_pool(path: Path) -> DraftPoolConfig:
    """Read a pool's configuration file. Raises ConfigError."""
    data = read_yaml(path)
    if isinstance(server := data.get("server"), dict):
        data["server"] = fill_in_draft_server(server)
    settings = validate(DraftPoolConfig, data, ["server.preset"])
    check_kind(settings.server)
    return settings


async def _serve(settings: DraftPoolConfig, security: Security, host: str, port: int) -> None:
    end = end_event()
    inner = Security(new_token(), security.tls)
    proxy = DraftProxy(inner)
    async with DraftPool(settings, inner, proxy), RoleServer([proxy], security, host, port) as one:
        typer.echo(f"drafting on {one.address}")
        await end.wait()


if __name__ == "__main__":
    app()
