"""An endpoint over HTTP: what its statuses mean for a batch, without a network."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from deploy.batches import http
from deploy.batches.http import HttpService
from deploy.batches.results import ServiceBusyError, ServiceLostError
from diffuspec.core.errors import ConfigError

CHAT = "/v1/chat/completions"
Answer = Callable[[httpx2.Request], httpx2.Response]


def service(answer: Answer) -> HttpService:
    """Return a service that has one model and answers requests by a function."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            return httpx2.Response(200, json={"data": [{"id": "tiny"}]})
        return answer(request)

    return HttpService(
        "http://endpoint",
        "secret",
        concurrency=2,
        timeout_seconds=5,
        transport=httpx2.MockTransport(handle),
    )


async def ask(answer: Answer, **body: Any) -> Any:
    async with service(answer) as endpoint:
        return await endpoint.ask(CHAT, body, "batch-1-1")


async def test_a_request_has_the_key_an_id_and_the_served_model():
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == "Bearer secret"
        assert (request.method, str(request.url)) == ("POST", f"http://endpoint{CHAT}")
        body = json.loads(request.content)
        return httpx2.Response(
            200, json=body, headers={"x-request-id": request.headers["x-request-id"]}
        )

    reply = await ask(answer, max_tokens=4)
    assert (reply.status_code, reply.request_id) == (200, "batch-1-1")
    assert reply.body == {"model": "tiny", "max_tokens": 4}
    assert (await ask(answer, model="other")).body == {"model": "other"}


async def test_keys_that_had_no_effect_are_those_of_the_header():
    headers = {"x-diffuspec-ignored": "colour, tools.web_search"}
    reply = await ask(lambda _: httpx2.Response(200, json={}, headers=headers))
    assert reply.ignored == ("colour", "tools.web_search")
    assert (await ask(lambda _: httpx2.Response(200, json={}))).ignored == ()


async def test_what_is_wrong_with_a_request_is_its_reply():
    reply = await ask(lambda _: httpx2.Response(400, json={"error": {"param": "top_p"}}))
    assert (reply.status_code, reply.body) == (400, {"error": {"param": "top_p"}})


async def test_a_row_at_which_the_service_lost_processes_is_not_sent_again():
    error = {"error": {"code": "fatal_request", "message": "do not retry it"}}
    reply = await ask(lambda _: httpx2.Response(500, json=error))
    assert (reply.status_code, reply.body) == (500, error)


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"retry-after": "3"}, 3.0),
        (503, {"retry-after": "1e9"}, 120.0),
        (503, {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        (429, {}, 0.0),
    ],
)
async def test_a_busy_endpoint_tells_when_to_ask_again(status, headers, seconds):
    with pytest.raises(ServiceBusyError, match=f"status {status}") as busy:
        await ask(lambda _: httpx2.Response(status, headers=headers))
    assert busy.value.retry_after_seconds == seconds


@pytest.mark.parametrize("status", [408, 500, 502, 504])
async def test_an_endpoint_that_failed_is_lost(status):
    with pytest.raises(ServiceLostError, match=f"status {status}"):
        await ask(lambda _: httpx2.Response(status, text="Internal Server Error"))


@pytest.mark.parametrize(
    ("error", "is_of_row"),
    [
        ({"message": "no such model: this service has 'a'", "code": "model_not_found"}, True),
        ({"message": "no application has this path now", "code": "not_found"}, False),
    ],
)
async def test_a_path_that_has_no_service_now_is_a_loss_and_an_unknown_model_the_row_s_fault(
    error, is_of_row
):
    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(404, json={"error": error})

    if is_of_row:
        assert (await ask(answer)).status_code == 404
    else:
        with pytest.raises(ServiceLostError, match="nothing has this path now"):
            await ask(answer)


@pytest.mark.parametrize("text", ["", "<html>", "[1]"])
async def test_a_reply_without_an_object_is_a_loss(text):
    with pytest.raises(ServiceLostError, match="without a JSON object"):
        await ask(lambda _: httpx2.Response(200, text=text))


async def test_a_reply_without_end_is_not_read(monkeypatch):
    monkeypatch.setattr(http, "MAX_REPLY_BYTES", 100)
    with pytest.raises(ServiceLostError, match="a reply above 100 bytes"):
        await ask(lambda _: httpx2.Response(200, content=b"x" * 101))


async def test_a_connection_that_breaks_is_a_loss():
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("connection reset", request=request)

    with pytest.raises(ServiceLostError, match="connection reset"):
        await ask(answer)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_key_that_is_refused_ends_the_batch(status):
    with pytest.raises(ConfigError, match="refuses the API key"):
        await ask(lambda _: httpx2.Response(status, json={}))


async def test_what_is_no_openai_endpoint_is_refused():
    transport = httpx2.MockTransport(lambda _: httpx2.Response(404, json={}))
    options: dict[str, Any] = {"concurrency": 1, "timeout_seconds": 5, "transport": transport}
    with pytest.raises(ConfigError, match="http://endpoint is no OpenAI endpoint"):
        async with HttpService("http://endpoint", None, **options):
            pass


async def test_nobody_at_the_address_is_an_error_at_once():
    with pytest.raises(ConfigError, match=r"no endpoint at http://127\.0\.0\.1:9"):
        async with HttpService("http://127.0.0.1:9", None, concurrency=1, timeout_seconds=5):
            pass
    with pytest.raises(ConfigError, match="--address must be auto or begin with http://, got 'x'"):
        async with HttpService("x", None, concurrency=1, timeout_seconds=5):
            pass
