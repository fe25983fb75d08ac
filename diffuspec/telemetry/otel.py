"""OpenTelemetry: spans are exported if its standard variables say so; otherwise there is no cost.

OTEL_EXPORTER_OTLP_ENDPOINT (or ..._TRACES_ENDPOINT), or OTEL_TRACES_EXPORTER=otlp, turn it on;
OTEL_TRACES_EXPORTER=none and OTEL_SDK_DISABLED=true turn it off. The other OTEL_* variables set
sampling, headers, limits and the name of the service.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from diffuspec.core.addresses import is_loopback
from diffuspec.core.errors import ConfigError

if TYPE_CHECKING:
    import requests
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from diffuspec.telemetry.draft_spans import DraftSpans
    from diffuspec.telemetry.request_spans import RequestSpans

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_DEFAULT_ENDPOINT = "http://localhost:4318"
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
_PROTOCOL = "http/protobuf"


def is_on(variables: Mapping[str, str]) -> bool:
    """Return whether spans are to be exported. Raises ConfigError for an unknown exporter."""
    exporter = variables.get("OTEL_TRACES_EXPORTER", "")
    if exporter == "none" or variables.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if exporter not in ("", "otlp"):
        raise ConfigError(f"OTEL_TRACES_EXPORTER must be otlp or none, got {exporter!r:.80}")
    return bool(exporter) or any(variables.get(name) for name in _ENDPOINTS)


def check() -> None:
    """Raise ConfigError for variables that `exporting` would refuse, before anything is loaded."""
    if is_on(os.environ):
        _exporter()


@contextlib.contextmanager
def exporting(service: str) -> Iterator[RequestSpans | None]:
    """Yield the recorder of spans, or None if it is off; send the last spans at the end.

    They are shown under the name `service`, unless OTEL_SERVICE_NAME is set. Raises ConfigError if
    the extra `otel` is not installed.
    """
    with _provider(service) as provider:
        if provider is None:
            yield None
            return
        from diffuspec.telemetry.request_spans import RequestSpans

        yield RequestSpans(provider)


@contextlib.contextmanager
def exporting_drafts() -> Iterator[DraftSpans | None]:
    """Yield the recorder of a draft server's spans, like `exporting` for requests."""
    with _provider("diffuspec-draft-server") as provider:
        if provider is None:
            yield None
            return
        from diffuspec.telemetry.draft_spans import DraftSpans

        yield DraftSpans(provider)


@contextlib.contextmanager
def _provider(service: str) -> Iterator[TracerProvider | None]:
    if not is_on(os.environ):
        yield None
        return
    exporter = _exporter()
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME") or service
    provider = TracerProvider(resource=Resource.create({"service.name": name}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    try:
        yield provider
    finally:
        provider.shutdown()


def _exporter() -> SpanExporter:
    for variable in _PROTOCOLS:
        if os.environ.get(variable, _PROTOCOL) != _PROTOCOL:
            raise ConfigError(f"{variable} must be {_PROTOCOL}, got {os.environ[variable]!r:.80}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "the OTEL_* variables ask for traces, which need: pip install 'diffuspec[otel]'"
        ) from error
    return OTLPSpanExporter(session=_direct_session())


def _direct_session() -> requests.Session | None:
    """Return a session without proxies for a collector on loopback; None: the exporter's own."""
    given = (os.environ.get(name) for name in reversed(_ENDPOINTS))
    endpoint = next(filter(None, given), _DEFAULT_ENDPOINT)
    if not is_loopback(urlsplit(endpoint).hostname or ""):
        return None
    import requests  # the exporter needs it, too

    session = requests.Session()
    session.trust_env = False
    return session
