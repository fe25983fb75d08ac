"""Bodies of the keys in the OpenAPI document and any values are answered, or refused by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import httpx2
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.serve.messages.bodies import MessagesBody
from diffuspec.serve.openai.bodies import ChatBody, CompletionBody
from diffuspec.serve.openai.schema import body_schema, extended_schema
from diffuspec.serve.responses.bodies import ResponsesBody
from tests.support.service import fake_engine, http_client

Asked: TypeAlias = list[tuple[str, dict[str, Any]]]
Ask: TypeAlias = Callable[[Asked], list[httpx2.Response]]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
KEYS_OF = {
    CHAT: sorted(body_schema(ChatBody)["properties"]),
    TEXT: sorted(body_schema(CompletionBody)["properties"]),
    RESPONSES: sorted(extended_schema(ResponsesBody)["properties"]),
    MESSAGES: sorted(extended_schema(MessagesBody)["properties"]),
}
NEEDED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
    TEXT: {"prompt": "hello", "max_tokens": 4},
    RESPONSES: {"input": "hello", "max_output_tokens": 4},
    MESSAGES: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
}
NUMBERS = st.sampled_from(
    [-(2**63), -100, -1, 0, 1, 2, 5, 300, 2**31, 2**63, -0.5, 0.5, 1.0, 1e300]
)
TEXTS = st.sampled_from(
    ["", "a", "ß", "[a-z]+", "off", "auto", "json_object", "start: 'a'", "\x00"]
)
KEYS = st.sampled_from(
    ["0", "-1", "257", "type", "a", "json", "policy", "include_usage", "function"]
)
SIMPLE = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    endpoint = draw(st.sampled_from(sorted(NEEDED)))
    odd = draw(st.dictionaries(st.sampled_from(KEYS_OF[endpoint]), VALUES, max_size=4))
    return endpoint, {**NEEDED[endpoint], **odd}


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Post bodies to one service, several at a time."""

    async def post_all(client: httpx2.AsyncClient, asked: Asked) -> list[httpx2.Response]:
        return await asyncio.gather(*(client.post(path, json=body) for path, body in asked))

    with asyncio.Runner() as runner:
        engine = fake_engine(folder=tmp_path_factory.mktemp("target"))
        client = http_client(engine)
        yield lambda asked: runner.run(post_all(client, asked))
        runner.run(client.aclose())
        runner.run(engine.stop())


@pytest.mark.no_cover
@settings(max_examples=100, deadline=None)
@given(asked=st.lists(requests(), min_size=4, max_size=4))
def test_a_body_is_answered_or_refused_by_the_name_of_a_key(ask: Ask, asked: Asked) -> None:
    for (path, body), response in zip(asked, ask(asked), strict=True):
        assert response.status_code in (200, 400, 404), (path, body, response.text)
        if response.status_code == 400:
            error = response.json()["error"]
            assert path == MESSAGES or error["param"], (path, body, error)
