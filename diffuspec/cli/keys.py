"""`diffuspec keys`: API keys of the service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from diffuspec.core.errors import ConfigError

EXAMPLES = """[bold]Examples[/bold]

  diffuspec keys add keys.yaml alice
  diffuspec keys add keys.yaml batch --max-requests 4 --tokens-per-minute 100000
  diffuspec serve --api-keys keys.yaml
"""

KeyFile = Annotated[
    Path, typer.Argument(metavar="FILE.yaml", help="File of keys; created if it does not exist.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the key's owner.")]
MaxRequests = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Maximum number of concurrent requests. Default: unlimited."
    ),
]
TokensPerMinute = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Maximum number of tokens per minute, of prompts and answers. Default: unlimited.",
    ),
]
CacheGroup = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Keys with the same group share cached beginnings of prompts. Default: no group.",
    ),
]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


def add(
    file: KeyFile,
    name: Name,
    max_requests: MaxRequests = None,
    tokens_per_minute: TokensPerMinute = None,
    cache_group: CacheGroup = None,
) -> None:
    """Make a key, print it, and append its hash to a file.

    The key cannot be shown again. A service that runs takes it within a second; to withdraw a key,
    remove its lines from the file.
    """
    from diffuspec.serve.http.keys import add_key

    for what, given in (("NAME", name), ("--cache-group", cache_group)):
        if given is not None and not _NAME.fullmatch(given):
            raise ConfigError(
                f"{what} must be a letter and up to 63 of A-Z a-z 0-9 . _ -, got {given!r:.80}"
            )
    typer.echo(add_key(file, name, max_requests, tokens_per_minute, cache_group))
