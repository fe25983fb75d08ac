"""What is answered is what the OpenAPI document says: every key, every status, every event."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from diffuspec.core import errors
from diffuspec.serve.app import create_app
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.http.keys import add_key
from diffuspec.serve.settings import ServeSettings
from tests.support.service import MODEL, Service, events, fake_engine, http_client, named_events

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
CALLED = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 40}
FORM = {
    "type": "json_schema",
    "json_schema": {"name": "city", "schema": PARAMETERS | {"additionalProperties": False}},
}
FUNCTION = {"type": "function", "name": "weather", "parameters": PARAMETERS}
RESPONSE_TOOLS = {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 40}
TOOL = {"name": "weather", "input_schema": PARAMETERS}
MESSAGE_TOOLS = {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 40}
DRAFTED = {"speculation": {"policy": "fixed", "num_draft_tokens": 4, "report_drafts": True}}
IDS: dict[str, Any] = {"return_token_ids": True, "prompt_logprobs": 1}
SHORT = {"max_tokens": 12, "temperature": 0}


class Document:
    """An OpenAPI document that allows no other keys than those it names."""

    def __init__(self, document: dict[str, Any]) -> None:
        for schema in document["components"]["schemas"].values():
            schema["additionalProperties"] = False
        self._document = document
        self.paths = document["paths"]

    def check(self, response: httpx2.Response, method: str, path: str) -> None:
        """Fail if the response to a request is not one that the document has."""
        said = self.paths[path][method.lower()]["responses"]
        assert str(response.status_code) in said, (path, response.text)
        kind = response.headers["content-type"].partition(";")[0]
        schema = said[str(response.status_code)]["content"][kind]["schema"]
        if kind == "application/json":
            self.validate(response.json(), schema)
        elif kind == "text/event-stream":
            read = named_events if response.text.startswith("event: ") else events
            found = read(response.text)
            assert found
            for one in found:
                self.validate(one, schema)

    def validate(self, value: object, schema: dict[str, Any]) -> None:
        components = self._document["components"]
        Draft202012Validator({**schema, "components": components}).validate(value)


@pytest.fixture(scope="module")
def document() -> Document:
    backend: Any = _Failing(ValueError())
    app = create_app(backend, ServeSettings())
    return Document(json.loads(json.dumps(app.openapi())))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {}),
        (CHAT, {"n": 2, "logprobs": True, "top_logprobs": 2}),
        (CHAT, {"stop": "e", **IDS}),
        (CHAT, CALLED),
        (CHAT, {"response_format": FORM, **DRAFTED}),
        (CHAT, {"add_generation_prompt": False, "continue_final_message": True}),
        (CHAT, {"stream": True, "n": 2, "logprobs": True, "top_logprobs": 1}),
        (CHAT, {"stream": True, "stream_options": {"include_usage": True}, **DRAFTED}),
        (CHAT, {"stream": True, "return_token_ids": True, **CALLED}),
        (TEXT, {}),
        (TEXT, {"prompt": ["One", "Two"], "n": 2, "stop": "e", **IDS}),
        (TEXT, {"echo": True, "logprobs": 2, "max_tokens": 0}),
        (TEXT, {"stream": True, "logprobs": 1, "return_token_ids": True, **DRAFTED}),
        (TEXT, {"stream": True, "echo": True, "stream_options": {"continuous_usage_stats": True}}),
        ("/v1/responses", {}),
        ("/v1/responses", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ("/v1/responses", {"stream": True, "reasoning": {"summary": "auto"}}),
        ("/v1/responses", {"stream": True, **RESPONSE_TOOLS}),
        ("/v1/messages", {}),
        ("/v1/messages", {"stream": True, **MESSAGE_TOOLS}),
        ("/v1/messages/count_tokens", {}),
        ("/tokenize", {"messages": MESSAGES}),
        ("/tokenize", {"prompt": "x", "return_token_strs": True}),
        ("/detokenize", {"tokens": [1, 2]}),
    ],
    ids=str,
)
def test_an_answer_is_what_the_document_says(
    service: Service, document: Document, path: str, body: dict[str, Any]
):
    asked = {
        TEXT: {"prompt": "Paris is", **SHORT},
        CHAT: {"messages": MESSAGES, **SHORT},
        "/v1/responses": {"input": MESSAGES, "max_output_tokens": 12},
        "/v1/messages": {"messages": MESSAGES, **SHORT},
        "/v1/messages/count_tokens": {"messages": MESSAGES},
    }
    response = httpx2.post(service.url + path, json=asked.get(path, {}) | body, timeout=60)
    assert response.status_code == 200, response.text
    document.check(response, "POST", path)


def test_what_can_be_read_is_what_the_document_says(service: Service, document: Document):
    paths = [path for path, methods in document.paths.items() if "get" in methods]
    assert len(paths) > 5
    for path in paths:
        response = httpx2.get(service.url + path.replace("{name}", MODEL))
        assert response.status_code == 200
        document.check(response, "GET", path)


class _Failing:
    """A backend that fails with an error, whatever is asked of it."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.model = ServedModel(MODEL, 0, 512, 256)

    @property
    def tokenizer(self) -> Any:
        raise self.error

    async def status(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequestError("temperature must be less"), 400),
        (errors.ContextLengthError("too long"), 400),
        (errors.OverloadedError("full"), 429),
        (errors.ShuttingDownError("the coordinator is shutting down"), 503),
        (errors.RequestCancelledError("stopping"), 503),
        (errors.FatalRequestError("workers were lost 3 times"), 500),
        (errors.VerifierUnavailableError("away"), 503),
        (errors.VerifierError("failed"), 503),
        (TimeoutError(), 504),
        (ZeroDivisionError(), 500),
    ],
    ids=str,
)
async def test_an_error_is_what_the_document_says(document: Document, error, status):
    asked: dict[str, Any] = {
        TEXT: {"prompt": "x"},
        CHAT: {"messages": MESSAGES},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
    }
    async with http_client(_Failing(error)) as client:
        for path, body in asked.items():
            response = await client.post(path, json=body)
            is_busy = status == 503 or isinstance(error, errors.OverloadedError)
            assert response.status_code == (529 if is_busy and "messages" in path else status)
            document.check(response, "POST", path)


async def test_a_refusal_is_what_the_document_says(document: Document, tmp_path):
    add_key(tmp_path / "keys.yaml", "alice")
    settings = ServeSettings(max_body_bytes=1024)
    large = b" " * 2000

    async def slow():
        yield b"{"
        raise TimeoutError

    async with (
        http_client(fake_engine(), settings) as client,
        http_client(fake_engine(), ServeSettings(api_keys=tmp_path / "keys.yaml")) as keyed,
    ):
        as_json = {"content-type": "application/json"}
        for path in (TEXT, CHAT, "/v1/responses", "/v1/messages", "/tokenize", "/detokenize"):
            for status, response in (
                (400, await client.post(path, json=[])),
                (400, await client.post(path, json={}, headers={"x-request-id": "?"})),
                (401, await keyed.post(path, json={})),
                (403, await client.post(path, json={}, headers={"host": "elsewhere.example"})),
                (404, await client.post(path, json={"model": "another"})),
                (408, await client.post(path, content=slow(), headers=as_json)),
                (413, await client.post(path, content=large, headers=as_json)),
                (415, await client.post(path, content=b"{}")),
            ):
                assert response.status_code == status, response.text
                document.check(response, "POST", path)
        name = "/v1/models/{name}"
        document.check(await client.get("/v1/models/another"), "GET", name)
        document.check(await keyed.get("/v1/models/a"), "GET", name)


async def test_wrong_paths_and_methods_have_the_error_of_the_document(
    http: httpx2.AsyncClient, document: Document
):
    for method, path, status in (("GET", "/nowhere", 404), ("DELETE", TEXT, 405)):
        response = await http.request(method, path)
        assert response.status_code == status
        document.validate(response.json(), {"$ref": "#/components/schemas/Error"})


def test_no_two_routes_have_the_same_description(document: Document):
    described = {
        operation["description"]: path
        for path, methods in document.paths.items()
        for operation in methods.values()
    }
    assert described.keys() >= {
        "Describe the served model.",
        "Return 200 while the process is alive, 503 when it should be started again.",
    }
    assert len(described) == len(document.paths) - 1  # /ping is another name of /health


def test_every_route_says_its_answer_and_its_errors(document: Document):
    for path, methods in document.paths.items():
        for operation in methods.values():
            for status, said in operation["responses"].items():
                assert said["content"] and "x-request-id" in said["headers"], (path, status)
                assert all(one["schema"] for one in said["content"].values()), (path, status)
