"""`diffuspec serve`: OpenAI's API over models of this process."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diffuspec.cli import options
from diffuspec.cli.parameters import NOTHING_GIVEN, Given
from diffuspec.core.errors import ConfigError
from diffuspec.pairs.tiny import TARGET

EXAMPLES = """[bold]Examples[/bold]

  diffuspec serve                             [dim]# the embedded pair on http://127.0.0.1:8000[/dim]
  diffuspec serve --target DIR --drafter DIR --ngram FILE --port 9000
  diffuspec serve --config FILE.yaml --model-name my-model
"""

_SERVICE = "Service"


def _option(text: str, metavar: str, **limits: Any) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=_SERVICE, **limits)


Host = Annotated[str, _option("Address to serve on.", "ADDRESS")]
Port = Annotated[int, _option("Port to serve on; 0: a free one.", "N", min=0, max=65535)]
ModelName = Annotated[
    str | None, _option("The model's name for clients. Default: its directory's.", "NAME")
]
MaxSequences = Annotated[
    int | None, _option("Requests decoded at the same time. Default: 8.", "N", min=1, max=1024)
]
Certificate = Annotated[Path | None, _option("TLS certificate, with its chain.", "FILE.pem")]
Key = Annotated[Path | None, _option("Private key of the TLS certificate.", "FILE.pem")]


@options.takes_speculation
def run(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    model_name: ModelName = None,
    max_sequences: MaxSequences = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    target: options.Target = None,
    drafter: options.Drafter = None,
    drafter_kind: options.DrafterKind = None,
    ngram: options.Ngram = None,
    config: options.Config = None,
    threads: options.Threads = None,
    draft_length: options.DraftLength = None,
    speculation: Given = NOTHING_GIVEN,
) -> None:
    """Serve OpenAI's API: chat and completions, streaming or not.

    Any OpenAI client can use it with the base URL that is printed, ending in /v1. Ctrl-C or SIGTERM
    lets running requests finish.
    """
    from diffuspec.serve.server import Tls, bind, is_loopback, serve_engine
    from diffuspec.serve.settings import ServeSettings

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    if (tls_certificate is None) != (tls_key is None):
        raise ConfigError("--tls-certificate and --tls-key belong together")
    tls = Tls(tls_certificate, tls_key) if tls_certificate and tls_key else None
    drafting = {**options.policy(draft_length), **speculation}
    engine_config = options.engine_config(
        config, target, drafter, drafter_kind, ngram, drafting, max_sequences
    )
    path = engine_config.target.path
    name = model_name or ("diffuspec-tiny" if path == TARGET else path.resolve().name)
    bound = bind(host, port)
    if not is_loopback(bound):
        raise ConfigError(f"off loopback, on {host}, the service needs API keys")
    typer.echo(f"loading {path}", err=True)
    engine = options.open_engine(engine_config, threads)

    def announce(url: str) -> None:
        typer.echo(f"serving {name} on {url}\n\n{_curl(url, name)}\n")

    asyncio.run(serve_engine(engine, name, ServeSettings(), bound, announce, tls))


def _curl(url: str, name: str) -> str:
    body = (
        f'{{"model": "{name}", "messages": [{{"role": "user", "content": '
        f'"What is the capital of France?"}}]}}'
    )
    return f"curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'"
