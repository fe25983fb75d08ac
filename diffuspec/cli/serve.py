"""`diffuspec serve`: OpenAI's API over models in this process."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import uvloop

from diffuspec.cli import engine_config, options
from diffuspec.cli.command import HelpAll
from diffuspec.cli.parameters import NOTHING_GIVEN, Given, takes_fields
from diffuspec.core.addresses import MAX_PORT
from diffuspec.core.config import EngineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.faults import Faults
from diffuspec.core.memory import share_heaps
from diffuspec.core.validation import read_yaml, validate
from diffuspec.engine.preflight import note_faults
from diffuspec.pairs import parse_file
from diffuspec.telemetry import logs, otel

if TYPE_CHECKING:
    from diffuspec.serve.server import Tls
    from diffuspec.serve.settings import ServeSettings

EXAMPLES = """[bold]Examples[/bold]

  diffuspec serve                             [dim]# the embedded pair on http://127.0.0.1:8000[/dim]
  diffuspec serve DIR --drafter DIR --ngram FILE --port 9000
  diffuspec keys add keys.yaml alice
  diffuspec serve --host 0.0.0.0 --api-keys keys.yaml --tls-certificate FILE --tls-key FILE
  OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")    [dim]# its client[/dim]
"""

USUAL = (
    *("model", "pair", "drafter", "config", "max_model_len"),
    *("host", "port", "api_keys", "max_sequences", "help_all"),
)

_SERVICE = "Service"


def _option(text: str, metavar: str, **limits: Any) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=_SERVICE, **limits)


Model = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR|FILE.gguf", help="The target, as by --target. Default: the pair's."
    ),
]
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
        "Number of requests that are decoded concurrently. Default: 8.",
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
ChatTemplate = Annotated[
    Path | None,
    typer.Option(
        help="Chat template in Jinja, instead of the target's own.",
        metavar="FILE",
        rich_help_panel=_CHATS,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse unknown keys of bodies, instead of naming them in x-diffuspec-ignored.",
        rich_help_panel=_CHATS,
    ),
]


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """The options for the service itself. None: not given."""

    model: Model = None
    host: Host = "127.0.0.1"
    port: Port = 8000
    api_keys: ApiKeys = None
    model_name: ModelName = None
    max_sequences: MaxSequences = None
    tls_certificate: Certificate = None
    tls_key: Key = None
    tool_call_parser: ToolCallParser = None
    reasoning_parser: ReasoningParser = None
    generation_config: GenerationConfig = None
    chat_template: ChatTemplate = None
    strict: Strict = False

    def with_model(self, given: options.EngineOptions) -> options.EngineOptions:
        """Return the options with the target of the argument. Raises ConfigError."""
        if self.model is None:
            return given
        if given.target is not None:
            raise ConfigError("give the target as the argument or by --target, not both")
        return replace(given, target=self.model)

    def tls(self) -> Tls | None:
        """Return the certificate and its key, if given. Raises ConfigError."""
        from diffuspec.serve.server import Tls

        certificate, key = self.tls_certificate, self.tls_key
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise ConfigError("--tls-certificate and --tls-key belong together")
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        except OSError as error:
            raise ConfigError(
                f"--tls-certificate {certificate} and --tls-key {key} must be a certificate and "
                f"its key, in PEM form: {error.strerror or error}"
            ) from error
        return Tls(certificate, key)

    def check_reach(self, is_loopback: bool, settings: ServeSettings) -> None:
        """Raise ConfigError if others can reach the service and it demands no key."""
        if settings.api_keys is None and not is_loopback:
            raise ConfigError(f"{self.host} can be reached by others: give --api-keys FILE.yaml")

    def settings(self, data: Mapping[str, object]) -> ServeSettings:
        """Return the settings in a file's data, overridden by options. Raises ConfigError."""
        from diffuspec.serve.conventions import chosen_parsers
        from diffuspec.serve.http.keys import read_keys
        from diffuspec.serve.settings import ServeFile

        settings = validate(ServeFile, {"serve": data.get("serve", {})}).serve
        names = ("api_keys", "tool_call_parser", "reasoning_parser", "generation_config")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        settings = settings.model_copy(update=given | ({"strict": True} if self.strict else {}))
        chosen_parsers(settings)  # refuses wrong names and keys before models are loaded
        if settings.api_keys is not None:
            read_keys(settings.api_keys)
        return settings

    def engine(
        self, given: options.EngineOptions, speculation: Given, data: Mapping[str, object]
    ) -> EngineConfig:
        """Return the engine's configuration: a file's data, then options. Raises ConfigError."""
        configured = parse_file(data) if data.keys() - {"serve"} else None
        if configured is None:
            given = replace(given, config=None)
        config = engine_config.compose(
            given, speculation, self.max_sequences, configured, keeps_drafters=True
        )
        if self.chat_template is not None:
            target = config.target.model_copy(update={"chat_template": self.chat_template})
            config = config.model_copy(update={"target": target})
        return config


@takes_fields("service", ServiceOptions)
@options.takes_engine
@options.takes_speculation
def run(
    service: ServiceOptions,
    given: options.EngineOptions = options.NO_OPTIONS,
    speculation: Given = NOTHING_GIVEN,
    log_format: options.LogFormat = None,
    help_all: HelpAll = False,
) -> None:
    """Serve OpenAI's API. Ctrl-C or SIGTERM lets running requests finish."""
    from diffuspec.serve.server import name_of, serve_engine

    share_heaps()
    logs.configure(log_format)
    otel.check()
    with contextlib.ExitStack() as stack:
        with options.loading():
            checked = _check(service, service.with_model(given), speculation, stack)
            path, settings = checked.config.target.path, checked.settings
            name = service.model_name or name_of(path)
            typer.echo(f"loading {path}", err=True)
            engine = options.open_engine(checked.config, given.threads)

        def announce(url: str) -> None:
            typer.echo(f"serving {name} on {url}\n\n{_curl(url, settings)}\n")

        uvloop.run(serve_engine(engine, name, settings, checked.bound, announce, checked.tls))


class _Checked(NamedTuple):
    """Options and files that were checked before anything is loaded."""

    settings: ServeSettings
    config: EngineConfig
    bound: socket.socket
    tls: Tls | None


def _check(
    service: ServiceOptions,
    given: options.EngineOptions,
    speculation: Given,
    stack: contextlib.ExitStack,
) -> _Checked:
    """Check options, files and the port, which `stack` closes. Raises one error with all faults."""
    from diffuspec.serve.conventions import sampling_defaults
    from diffuspec.serve.server import bind, is_loopback

    data = {} if given.config is None else read_yaml(given.config)
    faults = Faults()
    tls = faults.check("", service.tls)
    settings = faults.check("", lambda: service.settings(data))
    config = faults.check("", lambda: service.engine(given, speculation, data))
    bound = faults.check("", lambda: stack.enter_context(bind(service.host, service.port)))
    if bound is not None and settings is not None:
        faults.check("", lambda: service.check_reach(is_loopback(bound), settings))
    if config is not None:
        note_faults(config, faults)
        if settings is not None and config.target.path.exists():
            source = settings.generation_config
            faults.check("", lambda: sampling_defaults(config.target.path, source))
    faults.raise_all()
    assert settings is not None and config is not None and bound is not None
    return _Checked(settings, config, bound, tls)


def _curl(url: str, settings: ServeSettings) -> str:
    message = '{"role": "user", "content": "What is the capital of France?"}'
    body = f'{{"messages": [{message}], "temperature": 0, "max_tokens": 64}}'
    key = "" if settings.api_keys is None else " -H 'authorization: Bearer KEY'"
    return (
        f"curl {url}/v1/chat/completions -H 'content-type: application/json'{key} \\\n  -d '{body}'"
    )
