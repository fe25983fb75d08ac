"""Bounds of bodies, requests and times, and the shape of every refusal."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator

import httpx2
import pytest

from diffuspec.core.errors import VerifierError, VerifierLostError, VerifierUnavailableError
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.settings import ServeSettings
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.service import Service, fake_engine, http_client

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
ASKED = {"prompt": "hello", "max_tokens": 4, "temperature": 0}


def error_of(response, status: int) -> dict[str, str]:
    """The error of a response, which has OpenAI's shape."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/nowhere", 404, None),
        ("POST", f"{CHAT}/x", 404, None),
        ("GET", CHAT, 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("OPTIONS", "/health", 405, "GET, HEAD"),
    ],
)
async def test_wrong_paths_and_methods_have_openais_shape(
    http: httpx2.AsyncClient, method, path, status, allowed
):
    response = await http.request(method, path)
    error_of(response, status)
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers.get("allow") == allowed


def test_what_can_be_read_can_be_asked_for_by_its_headers_alone(service: Service):
    for path in ("/health", "/v1/models", "/metrics", "/"):
        head, get = (httpx2.request(method, service.url + path) for method in ("HEAD", "GET"))
        assert head.status_code == get.status_code == 200
        assert head.headers["content-type"] == get.headers["content-type"]
        assert head.content == b""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON: EOF while parsing a value at line 1 column 0"),
        (b"{", "not valid JSON: EOF while parsing an object at line 1 column 1"),
        (b'{"prompt": NaN}', "not valid JSON: expected value at line 1 column 12"),
        (b'{"prompt": [1e999]}', "not valid JSON: a number is beyond the range of floats"),
        (b'{"prompt": "\xe9"}', "not valid JSON: invalid unicode code point at line 1 column 13"),
        (b'{"prompt": "\\ud800"}', "not valid JSON: unexpected end of hex escape at line 1"),
        (b'{"prompt": 1,\n}', "not valid JSON: trailing comma at line 2 column 1"),
        (b'{"prompt": ' + b"9" * 5000 + b"}", "not valid JSON: number out of range at line 1"),
        (b'{"prompt": ' + b"[" * 1000, "not valid JSON: recursion limit exceeded at line 1"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
    ],
)
async def test_bodies_that_are_no_json_object_are_refused(
    http: httpx2.AsyncClient, content, message
):
    headers = {"content-type": "application/json"}
    response = await http.post(TEXT, content=content, headers=headers)
    assert message in error_of(response, 400)["message"]


async def test_a_byte_order_mark_before_a_body_is_skipped(http: httpx2.AsyncClient):
    headers = {"content-type": "application/json"}
    content = b'\xef\xbb\xbf{"prompt": "hi", "max_tokens": 1}'
    assert (await http.post(TEXT, content=content, headers=headers)).status_code == 200


async def test_other_content_types_are_refused_as_pages_elsewhere_may_send_them(
    http: httpx2.AsyncClient,
):
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {"content-type": kind}
        response = await http.post(TEXT, content=b"{}", headers=headers)
        assert error_of(response, 415)["code"] == "unsupported_media_type"


async def test_a_compressed_body_is_refused_by_its_encoding(http: httpx2.AsyncClient):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await http.post(TEXT, content=gzip.compress(b"{}"), headers=headers)
    assert error_of(response, 415)["code"] == "unsupported_content_encoding"


async def test_a_large_body_is_refused_by_its_length_and_by_count():
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b" " * 1024

    headers = {"content-type": "application/json"}
    async with http_client(fake_engine(), ServeSettings(max_body_bytes=4096)) as client:
        for content in (b" " * 65536, pieces()):
            response = await client.post(TEXT, content=content, headers=headers)
            assert error_of(response, 413)["code"] == "body_too_large"


async def test_a_slow_body_is_given_up():
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    headers = {"content-type": "application/json"}
    async with http_client(fake_engine(), ServeSettings(body_seconds=0.01)) as client:
        response = await client.post(TEXT, content=pieces(), headers=headers)
    assert error_of(response, 408)["code"] == "body_timeout"


async def test_prompts_too_long_for_the_context_are_refused_with_its_length(
    http: httpx2.AsyncClient,
):
    for prompt in ("x" * 600, [5] * 600, "x" * 100_000):
        error = error_of(await http.post(TEXT, json={"prompt": prompt}), 400)
        assert re.search("maximum context length (is|of) 512 tokens", error["message"])
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    for number in (300, 100_000):
        chat = {"messages": [{"role": "user", "content": "x" * number}], "max_tokens": 300}
        error = error_of(await http.post(CHAT, json=chat), 400)
        assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


async def test_what_the_engine_refuses_is_named_too():
    engine = fake_engine()
    async with engine, http_client(engine) as client:
        response = await client.post(TEXT, json=ASKED | {"logit_bias": {"9999": 1}})
        assert error_of(response, 400)["param"] == "logit_bias"
        response = await client.post(TEXT, json=ASKED | {"speculation": {"drafter": "none"}})
        assert error_of(response, 400)["param"] == "speculation.drafter"
        for wrong in (9999, -1, 2**31, 10**30, -(10**30)):
            response = await client.post(TEXT, json=ASKED | {"prompt": [5, wrong]})
            error = error_of(response, 400)
            assert error["param"] == "prompt" and error["message"].endswith(f"got {wrong}")


async def test_a_request_id_is_returned_or_refused(http: httpx2.AsyncClient):
    response = await http.get("/health", headers={"x-request-id": "my-id.1#7"})
    assert response.headers["x-request-id"] == "my-id.1#7"
    for wrong in ("a b", "x" * 129, "<script>", ""):
        response = await http.get("/health", headers={"x-request-id": wrong})
        error_of(response, 400)
        assert response.headers["x-request-id"] != wrong


async def test_a_request_id_in_the_body_takes_the_place_of_one_that_a_gateway_sets(
    http: httpx2.AsyncClient,
):
    body = ASKED | {"request_id": "mine"}
    for headers in ({}, {"x-request-id": "a-gateways"}):
        response = await http.post(TEXT, json=body, headers=headers)
        assert response.headers["x-request-id"] == "mine"
        assert response.json()["id"] == "cmpl-mine"


async def test_without_keys_only_loopbacks_own_names_are_answered():
    async with http_client(fake_engine()) as client:
        for host in ("localhost", "LocalHost:80", "127.0.0.1:8000", "[::1]:8000"):
            assert (await client.get("/v1/models", headers={"host": host})).is_success
        for host in ("example.com", "localhost.example.com:80", "[::2]", ""):
            response = await client.get("/v1/models", headers={"host": host})
            assert error_of(response, 403)["code"] == "host_not_allowed"
        assert (await client.get("/health", headers={"host": "10.0.0.7"})).is_success
    settings = ServeSettings(allowed_hosts=("Example.com",))
    async with http_client(fake_engine(), settings) as client:
        assert (await client.get("/v1/models", headers={"host": "example.com:80"})).is_success
        refused = await client.get("/v1/models", headers={"host": "localhost"})
        assert "allowed_hosts" in error_of(refused, 403)["message"]


async def test_a_full_queue_is_told_with_a_time_to_retry_after():
    verifier = FakeVerifier()
    verifier.gate.close()
    engine = fake_engine(verifier, max_waiting=0)
    async with engine, http_client(engine) as client:
        asked = ASKED | {"prompt": [1, 2, 3]}
        running = [
            asyncio.create_task(client.post(TEXT, json=asked))
            for _ in range(FAKE_TARGET.max_sequences)
        ]
        await verifier.gate.arrival()
        while len(engine.requests()) < FAKE_TARGET.max_sequences:
            await asyncio.sleep(0)
        response = await client.post(TEXT, json=asked)
        assert error_of(response, 429)["code"] == "overloaded"
        assert response.headers["retry-after"] == "1"
        verifier.gate.open()
        assert all(response.is_success for response in await asyncio.gather(*running))


async def test_requests_in_progress_are_bounded():
    verifier = FakeVerifier()
    verifier.gate.close()
    engine = fake_engine(verifier)
    async with engine, http_client(engine, ServeSettings(max_requests=1)) as client:
        running = asyncio.create_task(client.post(TEXT, json=ASKED | {"prompt": [1]}))
        await verifier.gate.arrival()
        error_of(await client.post(TEXT, json=ASKED), 429)
        assert (await client.get("/health")).is_success
        verifier.gate.open()
        assert (await running).is_success
        assert (await client.post(TEXT, json=ASKED | {"prompt": [1]})).is_success


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_ends_at_the_services_own_deadline(stream):
    verifier = FakeVerifier()
    verifier.gate.close()
    engine = fake_engine(verifier)
    async with engine, http_client(engine, ServeSettings(request_seconds=0.05)) as client:
        asked = ASKED | {"prompt": [1], "stream": stream}
        headers = {"x-request-timeout-seconds": "0", "x-request-disconnect-disabled": "?1"}
        response = await client.post(TEXT, json=asked, headers=headers)
        assert error_of(response, 504)["code"] == "timeout"
        assert response.headers["x-should-retry"] == "false"
        assert engine.requests() == ()
        verifier.gate.open()


async def test_a_request_at_which_workers_die_is_not_to_be_retried():
    verifier = FakeVerifier()
    verifier.error = VerifierLostError("rank 0 died at 10.0.0.7")
    engine = fake_engine(verifier)
    async with engine, http_client(engine) as client:
        response = await client.post(TEXT, json=ASKED | {"prompt": [1]})
    error = error_of(response, 500)
    assert error["code"] == "fatal_request" and response.headers["x-should-retry"] == "false"
    assert "do not retry it" in error["message"] and "10.0.0.7" not in error["message"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (VerifierUnavailableError("at 10.0.0.7"), 503),
        (VerifierError("secret"), 503),
        (RuntimeError("secret"), 503),
    ],
)
async def test_what_fails_inside_is_told_without_details(error, status, caplog):
    verifier = FakeVerifier()
    verifier.error = error
    engine = fake_engine(verifier)
    sections = engine.config.coordinator.model_copy(update={"max_verifier_outage_seconds": 0})
    engine.config = engine.config.model_copy(update={"coordinator": sections})
    async with engine, http_client(engine) as client:
        response = await client.post(TEXT, json=ASKED | {"prompt": [1]})
        message = error_of(response, status)["message"]
        assert "10.0.0.7" not in message and "secret" not in message


async def test_a_bug_is_an_internal_error_and_its_log_has_no_text(caplog):
    text = "what the user wrote"

    class Broken:
        model = ServedModel("a-model", 0, 512, 258)

        @property
        def tokenizer(self):
            raise RuntimeError(text)

    async with http_client(Broken()) as client:
        response = await client.post(TEXT, json=ASKED)
    assert error_of(response, 500)["message"] == "internal error"
    assert "RuntimeError" in caplog.text and text not in caplog.text
    assert "raise RuntimeError(" in caplog.text  # where it comes from


async def test_a_backend_that_is_not_ready_answers_503_and_stays_alive():
    class Starting:
        @property
        def model(self):
            raise VerifierUnavailableError("starting")

        tokenizer = model
        is_alive = True

        async def status(self):
            raise VerifierUnavailableError("starting")

    async with http_client(Starting()) as client:
        assert (await client.get("/health")).is_success
        for method, path in (("GET", "/ready"), ("GET", "/v1/models"), ("POST", TEXT)):
            response = await client.request(method, path, json=ASKED if path == TEXT else None)
            error_of(response, 503)
            assert response.headers["retry-after"] == "1"


async def test_refusals_do_not_repeat_what_was_sent(http: httpx2.AsyncClient):
    secret = "a text of mine"
    wrong = [
        {"messages": [{"role": secret, "content": "x"}]},
        {"messages": secret},
        {"messages": [{"role": "user", "content": {"text": secret}}]},
        {"messages": [{"role": "user", "content": "x"}], "stop": [[secret]]},
        {"messages": [{"role": "user", "content": "x"}], "temperature": secret},
        {"messages": [{"role": "user", "content": "x"}], "speculation": {"policy": secret}},
        {"messages": [{"role": "user", "content": "x"}], "speculation": secret},
        {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": secret}},
    ]
    for body in wrong:
        response = await http.post(CHAT, json=body)
        error_of(response, 400)
        assert secret not in response.text, response.text


async def test_a_million_small_values_are_refused_quickly_and_in_short(http: httpx2.AsyncClient):
    bodies = [
        {"prompt": [*range(100_000), "x"]},
        {"prompt": [[1]] * 100_000},
        {"prompt": ["x"] * 100_000},
        {"prompt": "x", "stop": ["x"] * 100_000},
        {"prompt": "x", "stop_token_ids": [1] * 100_000},
        {"prompt": "x", "n": 10**9},
        {"prompt": "x", "max_tokens": 10**18},
        {"prompt": "x", "seed": 10**30},
        {f"key{i}": i for i in range(50_000)},
    ]
    for body in bodies:
        response = await http.post(TEXT, json=body)
        error_of(response, 400)
        assert len(response.content) < 1000
    messages = [{"role": "user", "content": "x"}] * 10_000
    response = await http.post(CHAT, json={"messages": messages})
    assert error_of(response, 400)["param"] == "messages"
