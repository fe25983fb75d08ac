"""Spans of a draft server: engines, their requests, and drafts."""

from typing import Any

import pytest

from diffuspec.telemetry import otel
from diffuspec.telemetry.draft_spans import MAX_DRAFT_SPANS, DraftSpans
from tests.support.draft_engine import FakeEngine, TimedDrafter, make_hello, make_service
from tests.support.fakes import right_and_sure
from tests.support.virtual_time import run_in_virtual_time
from tests.telemetry.test_otel import Recorded


@pytest.fixture
def recorded() -> Recorded:
    return Recorded(DraftSpans)


def about(span: Any) -> dict[str, Any]:
    return {name.removeprefix("diffuspec."): value for name, value in span.attributes.items()}


def test_an_engine_has_its_requests_below_it_and_these_their_drafts(recorded: Recorded):
    async def main() -> FakeEngine:
        async with make_service(TimedDrafter(right_and_sure), num_draft_tokens=2) as service:
            service.spans = recorded.spans
            session, _ = service.open(make_hello(tenant="one"))
            engine = FakeEngine(session, {"a": [3, 4, 5], "b": [7, 8]})
            await engine.run(6)
            engine.end("a")
            await engine.run(2)
            assert [about(one)["request_id"] for one in recorded.named("request")] == ["engine-1/a"]
            service.close(session)
            return engine

    engine = run_in_virtual_time(main())
    stream = recorded.one("engine-1")
    assert about(stream) == {"engine": "fake 1.0", "tenant": "one"}
    requests = recorded.named("request")
    assert {one.parent.span_id for one in requests} == {stream.context.span_id}
    assert [about(one)["num_drafts"] for one in requests] == [6, 8]
    drafts = recorded.named("draft")
    assert {one.parent.span_id for one in drafts} == {one.context.span_id for one in requests}
    assert {about(one)["source"] for one in drafts} >= {"fresh"}
    sent = sum([len(row.token_ids) for answer in engine.answers for row in answer.rows])
    assert sum([about(one)["num_draft_tokens"] for one in requests]) == sent
    assert sum([about(one)["num_accepted_tokens"] for one in requests]) > 8


def test_a_long_request_has_spans_of_its_first_drafts_alone(recorded: Recorded):
    spans = recorded.spans.engine("engine-1", "", "")
    for _ in range(MAX_DRAFT_SPANS + 5):
        spans.draft("a", "fresh", 3, 2, 0.001)
    spans.end()
    assert len(recorded.named("draft")) == MAX_DRAFT_SPANS
    assert about(recorded.one("request"))["num_drafts"] == MAX_DRAFT_SPANS + 5
    first = recorded.named("draft")[0]
    assert first.end_time - first.start_time == pytest.approx(1_000_000, abs=1000)


def test_nothing_is_recorded_where_it_is_not_switched_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    with otel.exporting_drafts() as spans:
        assert spans is None
