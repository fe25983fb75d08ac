"""Spans of requests, as the SDK's own exporters get them."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from diffuspec.core.errors import ConfigError, VerifierError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.telemetry import context, otel
from diffuspec.telemetry.request_spans import RequestSpans
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.service import fake_engine, http_client

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
SHORT = SamplingParams(max_tokens=12, ignore_eos=True)
LONG = SamplingParams(max_tokens=60, ignore_eos=True)
PLAIN = SpeculationParams(policy="off")
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Recorded:
    """Spans that have ended, by name."""

    def __init__(self, kind: Callable[[TracerProvider], Any] = RequestSpans) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = kind(provider)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> Any:
        [span] = self.named(name)
        return span


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in (ENDPOINT, "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)


def traced(recorded: Recorded, verifier: FakeVerifier | None = None) -> Engine:
    engine = fake_engine(verifier)
    engine.spans = recorded.spans
    return engine


async def test_a_request_is_queue_prefill_and_decode_with_its_steps(recorded):
    context.follow_trace(PARENT)
    async with traced(recorded) as engine:
        answer = await engine.complete([5, 6, 7], LONG, request_id="mine")
    request, decode = recorded.one("request"), recorded.one("decode")
    assert request.context.trace_id == int(TRACE, 16) and request.parent.span_id == int(SPAN, 16)
    parts = [recorded.one("queue"), recorded.one("prefill"), decode]
    assert {span.parent.span_id for span in parts} == {request.context.span_id}
    moments = [request.start_time]
    for span in parts:
        assert span.start_time == moments[-1]
        moments.append(span.end_time)
    assert moments == sorted(moments) and moments[-1] <= request.end_time
    steps = recorded.named("step")
    assert len(steps) == len(answer.steps) - 1
    assert {span.parent.span_id for span in steps} == {decode.context.span_id}
    for span, step in zip([parts[1], *steps], answer.steps, strict=True):
        about = {name.removeprefix("diffuspec."): value for name, value in span.attributes.items()}
        assert about["num_accepted_tokens"] == step.num_accepted_tokens
        assert about["verify_seconds"] == step.verify_seconds
        assert {"draft_seconds", "search_seconds", "transport_seconds"} < set(about)
    assert request.attributes["diffuspec.request_id"] == "mine"
    assert request.attributes["diffuspec.num_output_tokens"] == len(answer.token_ids)
    assert request.attributes["diffuspec.finish_reason"] == "length"


async def test_a_request_that_fails_or_is_cancelled_has_its_spans(recorded):
    verifier = FakeVerifier(FAKE_TARGET)
    verifier.error = VerifierError("gone, with a user's text")
    async with traced(recorded, verifier) as engine:
        with pytest.raises(VerifierError):
            await engine.complete([5, 6], SHORT)
    status = recorded.one("request").status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "VerifierError")
    recorded.exporter.clear()
    async with traced(recorded) as engine:
        stream = engine.stream([5], SHORT, PLAIN)
        await anext(stream)
        await stream.aclose()
    assert recorded.one("request").attributes["diffuspec.finish_reason"] == "cancelled"


async def test_steps_beyond_the_bound_are_counted_only(recorded, monkeypatch):
    monkeypatch.setattr("diffuspec.telemetry.request_spans.MAX_STEP_SPANS", 3)
    async with traced(recorded) as engine:
        answer = await engine.complete([5], SHORT, PLAIN)
    assert len(answer.steps) == 12 and len(recorded.named("step")) == 2  # and the first, in prefill
    assert recorded.one("request").attributes["diffuspec.num_steps"] == len(answer.steps)


async def test_http_continues_the_callers_trace(recorded):
    async with http_client(traced(recorded), spans=recorded.spans) as client:
        body = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
        headers = {"traceparent": PARENT, "x-request-id": "mine"}
        await client.post("/v1/completions", json=body, headers=headers)
        await client.get("/health", headers={"traceparent": "forged"})
    answered, request = recorded.one("POST /v1/completions"), recorded.one("request")
    assert answered.parent.span_id == int(SPAN, 16)
    assert request.parent.span_id == answered.context.span_id
    assert answered.attributes["http.response.status_code"] == 200
    assert answered.attributes["diffuspec.request_id"] == "mine"
    assert recorded.one("GET /health").parent is None
    texts = [str(span.to_json()) for span in recorded.exporter.get_finished_spans()]
    assert not any("hello" in text for text in texts)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({ENDPOINT: "http://x"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({ENDPOINT: "http://x", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "TRUE"}, False),
    ],
)
def test_the_standard_variables_switch_it_on_and_off(variables, expected):
    assert otel.is_on(variables) is expected


def test_what_cannot_be_exported_to_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="OTEL_TRACES_EXPORTER must be otlp or none"):
        otel.is_on({"OTEL_TRACES_EXPORTER": "zipkin"})
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="must be http/protobuf, got 'grpc'"):
        otel.check()
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'diffuspec\[otel\]'"):
        otel.check()


class Collector(BaseHTTPRequestHandler):
    """Takes spans over OTLP."""

    received: list[ExportTraceServiceRequest]

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        self.received.append(ExportTraceServiceRequest.FromString(content))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def collector() -> Iterator[HTTPServer]:
    Collector.received = []
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


async def test_spans_reach_a_collector_on_loopback_by_no_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with collector() as server:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
        with otel.exporting("diffuspec") as spans:
            async with fake_engine() as engine:
                engine.spans = spans
                await engine.complete([5], SHORT)
    [resource] = Collector.received[0].resource_spans
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert {"request", "queue", "prefill", "decode"} <= names
    attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert attributes["service.name"] == "ours"


def test_nothing_is_made_where_it_is_off():
    otel.check()
    with otel.exporting("diffuspec") as spans:
        assert spans is None
