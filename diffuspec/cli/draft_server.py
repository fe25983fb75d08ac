"""`diffuspec draft-server`: drafts for vLLM and other engines, by one process."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop

from diffuspec.cli import options
from diffuspec.cli.drafter_section import Section, with_block_size
from diffuspec.cli.parameters import takes_fields
from diffuspec.cli.signals import end_event
from diffuspec.core.addresses import MAX_PORT, parse_listen_address
from diffuspec.core.errors import ConfigError
from diffuspec.core.memory import share_heaps
from diffuspec.core.params import MAX_DRAFT_TOKENS
from diffuspec.core.validation import read_yaml, validate
from diffuspec.drafters import KINDS
from diffuspec.pairs import PAIRS, fill_in_draft_server, find_pair
from diffuspec.telemetry import logs, otel

if TYPE_CHECKING:
    from diffuspec.draft_server.config import DraftServerConfig
    from diffuspec.draft_server.service import DraftService
    from diffuspec.rpc.security import Security

logger = logging.getLogger(__name__)

EXAMPLES = """[bold]Examples[/bold]

  diffuspec draft-server --drafter DIR --ngram FILE --tokenizer DIR
  diffuspec draft-server --pair smollm2 --listen unix:/tmp/drafts.sock
  diffuspec draft-server --config FILE.yaml --listen 0.0.0.0:9500 \\
      --token-file FILE --tls-ca FILE --tls-certificate FILE --tls-key FILE

An engine finds it by its address, vLLM by the environment:

  DIFFUSPEC_DRAFT_SERVER=unix:/tmp/drafts.sock vllm serve MODEL --speculative-config \\
      '{"model": "diffuspec_client.vllm.Proposer", "num_speculative_tokens": 12}'
"""

_SERVICE, _TLS = "Service", "Security"
_KINDS = [name for name, kind in KINDS.items() if kind.needs_tokens_alone]


def _option(panel: str, text: str, metavar: str, **limits: Any) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=panel, **limits)


Config = Annotated[
    Path | None, options.model("Configuration of a draft server; options override it.", "FILE.yaml")
]
PairName = Annotated[
    str | None,
    options.model("Drafter, n-gram model and tokenizer of a pair by name.", "|".join(PAIRS)),
]
Drafter = Annotated[Path | None, options.model("The model that drafts.", "DIR")]
Kind = Annotated[str | None, options.model("What drafts. Default: diffuspec.", "|".join(_KINDS))]
Ngram = Annotated[Path | None, options.model("KenLM model over token ids.", "FILE")]
Tokenizer = Annotated[
    Path | None, options.model("Directory with the tokenizer of the engines' model.", "DIR")
]
Listen = Annotated[
    str, _option(_SERVICE, "Address to listen on: HOST:PORT, or a Unix socket.", "ADDRESS")
]
MaxModelLen = Annotated[
    int | None,
    _option(
        _SERVICE,
        "Maximum number of tokens of a request; longer requests get no drafts. Default: 4096.",
        "N",
        min=2,
    ),
]
MaxRequests = Annotated[
    int | None,
    _option(
        _SERVICE,
        "Maximum number of requests, of all engines, held at a time. Default: 32.",
        "N",
        min=1,
        max=1024,
    ),
]
NumDraftTokens = Annotated[
    int | None,
    _option(
        _SERVICE,
        "Fixed length of every draft, for measurements. Default: the length that pays.",
        "N",
        min=1,
        max=MAX_DRAFT_TOKENS,
    ),
]
MetricsPort = Annotated[
    int | None,
    _option(
        _SERVICE, "Port for Prometheus metrics and /health, on loopback.", "N", min=1, max=MAX_PORT
    ),
]
Explain = Annotated[bool, typer.Option("--explain", help="Print what would be served, and exit.")]


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """How engines and a server authenticate each other."""

    token_file: Annotated[
        Path | None,
        _option(
            _TLS,
            "File with the token that engines send; required unless the server is local.",
            "FILE",
        ),
    ] = None
    tls_ca: Annotated[
        Path | None,
        _option(
            _TLS, "Certificate of the authority that signed both sides' certificates.", "FILE.pem"
        ),
    ] = None
    tls_certificate: Annotated[
        Path | None, _option(_TLS, "Certificate of this server.", "FILE.pem")
    ] = None
    tls_key: Annotated[
        Path | None, _option(_TLS, "Private key of the server's certificate.", "FILE.pem")
    ] = None

    def security(self) -> Security:
        """Return the credentials. Raises ConfigError."""
        from diffuspec.rpc.security import Security, TlsFiles, new_token, read_token

        is_open = self.token_file is None
        token = new_token() if self.token_file is None else read_token(self.token_file)
        ca, certificate, key = self.tls_ca, self.tls_certificate, self.tls_key
        if ca is not None and certificate is not None and key is not None:
            return Security(token, TlsFiles(ca, certificate, key), is_open)
        if any((ca, certificate, key)):
            raise ConfigError("--tls-ca, --tls-certificate and --tls-key belong together")
        return Security(token, is_open=is_open)


NO_SECURITY = SecurityOptions()
takes_security = takes_fields("secured", SecurityOptions)


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """What drafts, and for how many requests. None: not given."""

    config: Config = None
    pair: PairName = None
    drafter: Drafter = None
    drafter_kind: Kind = None
    drafter_block_size: options.DrafterBlockSize = None
    ngram: Ngram = None
    tokenizer: Tokenizer = None
    max_model_len: MaxModelLen = None
    max_requests: MaxRequests = None
    num_draft_tokens: NumDraftTokens = None

    def settings(self) -> DraftServerConfig:
        """Return the configuration of a file or a pair, overridden by options.

        Raises ConfigError.
        """
        from diffuspec.draft_server.config import DraftServerConfig

        given = {
            "drafter": self._drafter(),
            "search": None if self.ngram is None else {"ngram": self.ngram},
            "tokenizer": self.tokenizer,
            "max_model_len": self.max_model_len,
            "max_requests": self.max_requests,
            "num_draft_tokens": self.num_draft_tokens,
        }
        data = self._base() | {key: value for key, value in given.items() if value is not None}
        if "drafter" not in data:
            raise ConfigError(
                "name what drafts: --drafter DIR with --tokenizer DIR, or --pair, or --config FILE"
            )
        if "tokenizer" not in data:
            raise ConfigError("--tokenizer DIR is needed: the tokenizer of the engines' model")
        return validate(DraftServerConfig, data, ["preset"])

    def _base(self) -> dict[str, Any]:
        """Return the content of the file, or of the pair's. Raises ConfigError."""
        if self.config is not None and self.pair is not None:
            raise ConfigError("--pair and --config exclude each other")
        data = {} if self.config is None else read_yaml(self.config)
        if self.pair is not None:
            find_pair(self.pair, "--pair")
            data["preset"] = self.pair
        return fill_in_draft_server(data)

    def _drafter(self) -> Section | None:
        section: Section | None = None
        if self.drafter is not None or self.drafter_kind is not None:
            section = {"kind": self.drafter_kind or "diffuspec"}
        if section is not None and self.drafter is not None:
            section["path"] = self.drafter
        return with_block_size(section, self.drafter_block_size)


@takes_fields("chosen", DraftOptions)
@takes_security
def run(
    chosen: DraftOptions,
    threads: options.Threads = None,
    listen: Listen = "127.0.0.1:9500",
    metrics_port: MetricsPort = None,
    secured: SecurityOptions = NO_SECURITY,
    explain: Explain = False,
    log_format: options.LogFormat = None,
) -> None:
    """Serve drafts to engines that are not ours: vLLM, SGLang, transformers, llama.cpp.

    Prints the address when it is ready. Ctrl-C or SIGTERM ends it; engines go on without drafts.
    """
    from diffuspec.draft_server.service import load_service
    from diffuspec.rpc.server.server import check_address

    share_heaps()
    logs.configure(log_format)
    host, port = parse_listen_address("--listen", listen)
    security = secured.security()
    security.server_credentials(host)  # raises on a bad configuration before models are loaded
    otel.check()
    settings = chosen.settings()
    if explain:
        typer.echo(_explanation(settings, listen, security))
        return
    check_address(host, port)
    if metrics_port is not None:
        check_address("127.0.0.1", metrics_port)
    options.use_threads(threads)
    with options.loading():  # outside the event loop, so that Ctrl-C ends it
        service, drafter = load_service(settings)
    with contextlib.closing(drafter):
        uvloop.run(_serve(service, security, host, port, metrics_port))


def _explanation(settings: DraftServerConfig, listen: str, security: Security) -> str:
    from diffuspec.draft_server.service import check_kind, load_target

    check_kind(settings)
    target, _ = load_target(settings)
    path = getattr(settings.drafter, "path", None)
    rows = {
        "address": listen,
        "token": "not asked for" if security.is_open else "asked for",
        "TLS": "off" if security.tls is None else "mutual",
        "drafter": settings.drafter.kind + (f", {path}" if path is not None else ""),
        "n-gram model": settings.search.ngram or "none",
        "path search": f"drafter weight {settings.drafter_weight}",
        "tokenizer": settings.tokenizer,
        "vocabulary": f"{target.info.vocab_size} tokens, digest {target.vocabulary}",
        "ends answers": ", ".join(map(str, target.info.eos_token_ids)) or "nothing",
        "requests": f"{settings.max_requests} at a time, of up to {settings.max_model_len} tokens",
        "drafts": (
            "as long as they pay"
            if settings.num_draft_tokens is None
            else f"{settings.num_draft_tokens} tokens each, whether they pay or not"
        ),
        "engines": f"{settings.max_engines} at a time",
        "tenants": ", ".join(f"{k} {v:g}" for k, v in settings.tenants.items()) or "all alike",
    }
    return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


async def _serve(
    service: DraftService, security: Security, host: str, port: int, metrics_port: int | None
) -> None:
    from diffuspec.rpc.server.draft_service import DraftServicer
    from diffuspec.rpc.server.server import RoleServer
    from diffuspec.telemetry.metrics_server import serving_metrics

    end = end_event()
    with contextlib.ExitStack() as stack:
        service.spans = stack.enter_context(otel.exporting_drafts())
        if metrics_port is not None:
            registry = service.metrics.registry
            stack.enter_context(serving_metrics(metrics_port, registry, service.is_healthy))
        async with service, RoleServer([DraftServicer(service)], security, host, port) as server:
            typer.echo(f"drafting on {server.address}")
            await end.wait()
            logger.info("ending: engines go on without drafts")
