"""`diffuspec serve`: OpenAI's API over models in this process, or in several."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop

from diffuspec.cli import options
from diffuspec.cli.parameters import NOTHING_GIVEN, Given
from diffuspec.core.addresses import MAX_PORT
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import read_yaml, validate
from diffuspec.pairs import parse_file
from diffuspec.telemetry import logs, otel

if TYPE_CHECKING:
    from diffuspec.serve.server import Tls
    from diffuspec.serve.settings import ServeSettings

EXAMPLES = """[bold]Examples[/bold]

  diffuspec serve                             [dim]# the embedded pair on http://127.0.0.1:8000[/dim]
  diffuspec serve --target DIR --drafter DIR --ngram FILE --port 9000
  diffuspec serve --data-parallel-size 2      [dim]# an engine in each of two processes[/dim]
  diffuspec keys add keys.yaml alice
  diffuspec serve --host 0.0.0.0 --api-keys keys.yaml --tls-certificate FILE --tls-key FILE

Clients take the printed URL with /v1 as their base URL:

  OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")

--config FILE.yaml is the file of an engine; a section `serve` in it has bounds of the service.
"""

_SERVICE = "Service"


def _option(text: str, metavar: str, **limits: Any) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=_SERVICE, **limits)


Host = Annotated[
    str, _option("Address to listen on. Any other than loopback needs --api-keys.", "ADDRESS")
]
Port = Annotated[int, _option("Port to listen on; 0: any free port.", "N", min=0, max=MAX_PORT)]
ApiKeys = Annotated[
    Path | None,
    _option("Require an API key from this file, which `diffuspec keys add` creates.", "FILE.yaml"),
]
ModelName = Annotated[
    str | None,
    _option("The name of the model that clients see. Default: the name of its directory.", "NAME"),
]
MaxSequences = Annotated[
    int | None,
    _option(
        "Number of requests that each engine decodes concurrently. Default: 8.",
        "N",
        min=1,
        max=1024,
    ),
]
Certificate = Annotated[Path | None, _option("TLS certificate, with its chain.", "FILE.pem")]
Key = Annotated[Path | None, _option("Private key of the TLS certificate.", "FILE.pem")]

_CHATS = "Chats"
ToolCallParser = Annotated[
    str | None,
    typer.Option(
        help="Format in which tool calls are parsed: hermes, qwen3_coder, llama3_json, "
        "pythonic, mistral, openai, none. Default: by the chat template.",
        metavar="NAME",
        rich_help_panel=_CHATS,
    ),
]
ReasoningParser = Annotated[
    str | None,
    typer.Option(
        help="Format in which reasoning is parsed: qwen3, deepseek_r1, openai_gptoss, none. "
        "Default: by the chat template.",
        metavar="NAME",
        rich_help_panel=_CHATS,
    ),
]
GenerationConfig = Annotated[
    str | None,
    typer.Option(
        help="Sampling defaults: auto (the model's), vllm (OpenAI's), or a directory that "
        "contains them.",
        metavar="auto|vllm|DIR",
        rich_help_panel=_CHATS,
    ),
]


@options.takes_engine
@options.takes_speculation
def run(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_keys: ApiKeys = None,
    model_name: ModelName = None,
    max_sequences: MaxSequences = None,
    data_parallel_size: options.DataParallelSize = None,
    tls_certificate: Certificate = None,
    tls_key: Key = None,
    tool_call_parser: ToolCallParser = None,
    reasoning_parser: ReasoningParser = None,
    generation_config: GenerationConfig = None,
    given: options.EngineOptions = options.NO_OPTIONS,
    speculation: Given = NOTHING_GIVEN,
    log_format: options.LogFormat = None,
) -> None:
    """Serve OpenAI's API: chat and completions, streaming or not.

    Prints the URL when it is ready. Ctrl-C or SIGTERM lets running requests finish.
    """
    from diffuspec.serve.conventions import sampling_defaults
    from diffuspec.serve.server import bind, is_loopback, name_of, serve_engine

    logs.configure(log_format)
    otel.check()
    tls = _tls(tls_certificate, tls_key)
    settings, configured = _read(
        given.config,
        api_keys=api_keys,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        generation_config=generation_config,
    )
    if configured is None:
        given = replace(given, config=None)
    engine_config = options.engine_config(
        given, speculation, max_sequences, configured, keeps_drafters=True
    )
    if data_parallel_size is not None:
        engine_config = engine_config.model_copy(update={"data_parallel_size": data_parallel_size})
    path = engine_config.target.path
    sampling_defaults(path, settings.generation_config)  # refuses it before models are loaded
    name = model_name or name_of(path)
    with bind(host, port) as bound:
        if settings.api_keys is None and not is_loopback(bound):
            raise ConfigError(f"{host} can be reached by others: give --api-keys FILE.yaml")
        typer.echo(f"loading {path}", err=True)
        engine = options.open_engines(engine_config, given.threads)

        def announce(url: str) -> None:
            typer.echo(f"serving {name} on {url}\n\n{_curl(url, settings)}\n")

        uvloop.run(serve_engine(engine, name, settings, bound, announce, tls))


def _tls(certificate: Path | None, key: Path | None) -> Tls | None:
    from diffuspec.serve.server import Tls

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-certificate and --tls-key belong together")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:
        raise ConfigError(
            f"--tls-certificate {certificate} and --tls-key {key} must be a certificate and its "
            f"key, in PEM form: {error.strerror or error}"
        ) from error
    return Tls(certificate, key)


def _read(config: Path | None, **given: object) -> tuple[ServeSettings, EngineConfig | None]:
    """Return the service's settings, `given` over the file's, and the engine's if there are any."""
    from diffuspec.serve.conventions import chosen_parsers
    from diffuspec.serve.http.keys import read_keys
    from diffuspec.serve.settings import ServeFile

    data = {} if config is None else read_yaml(config)
    settings = validate(ServeFile, {"serve": data.get("serve", {})}).serve
    wanted = {name: value for name, value in given.items() if value is not None}
    settings = settings.model_copy(update=wanted)
    chosen_parsers(settings)  # refuses wrong names and keys before models are loaded
    if settings.api_keys is not None:
        read_keys(settings.api_keys)
    return settings, parse_file(data) if data.keys() - {"serve"} else None


def _curl(url: str, settings: ServeSettings) -> str:
    body = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    key = "" if settings.api_keys is None else " -H 'authorization: Bearer KEY'"
    return (
        f"curl {url}/v1/chat/completions -H 'content-type: application/json'{key} \\\n  -d '{body}'"
    )
