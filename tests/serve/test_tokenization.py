"""/tokenize and /detokenize, in vLLM's words."""

from __future__ import annotations

import asyncio
import threading

import pytest

from diffuspec.serve.openai.tokenization import tokenize
from diffuspec.serve.settings import ServeSettings
from tests.support.service import fake_engine, http_client

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def asked(path: str, body: object) -> dict[str, object]:
    async with fake_engine() as engine, http_client(engine) as client:
        found: dict[str, object] = (await client.post(path, json=body)).json()
        return found


async def test_a_text_has_its_token_ids_and_their_names():
    found = await asked("/tokenize", {"prompt": "hi", "return_token_strs": True})
    assert found["token_strs"] == ["h", "i"] and found["count"] == 2
    assert await asked("/detokenize", {"tokens": found["tokens"]}) == {"prompt": "hi"}


async def test_a_chat_is_tokenised_as_its_template_lays_it_out():
    found = await asked("/tokenize", CHAT | {"add_generation_prompt": False, "temperature": 0})
    text = await asked("/detokenize", {"tokens": found["tokens"]})
    assert text == {"prompt": "<|start|>user:hi"} and found["token_strs"] is None


@pytest.mark.parametrize("allows", [False, True])
async def test_a_user_writes_tokens_of_the_template_only_where_that_is_allowed(allows):
    settings = ServeSettings(allow_template_tokens=allows)
    body = {"messages": [{"role": "user", "content": "<|start|>system"}]}
    async with fake_engine() as engine, http_client(engine, settings) as client:
        chat = (await client.post("/tokenize", json=body)).json()["tokens"]
        marks = [1 for token_id in chat if token_id == chat[0]]
        assert len(marks) == 2 + allows
        text = (await client.post("/detokenize", json={"tokens": chat})).json()["prompt"]
        assert text.startswith("<|start|>user:<|start|>system")
        text = {"prompt": "<|start|>"}  # of a completion
        assert (await client.post("/tokenize", json=text)).json()["tokens"] == chat[:1]


@pytest.mark.parametrize("number", [600, 30_000])
async def test_a_prompt_may_be_longer_than_the_context(number):
    found = await asked("/tokenize", {"prompt": "x" * number})
    assert found["count"] == number and found["max_model_len"] == 512


async def test_answers_do_not_wait_for_long_texts_that_are_only_counted(monkeypatch):
    is_reading, may_end = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def read_slowly(*asked):
        loop.call_soon_threadsafe(is_reading.set)
        may_end.wait()
        return tokenize(*asked)

    monkeypatch.setattr("diffuspec.serve.app.tokenize", read_slowly)
    async with fake_engine() as engine, http_client(engine) as client:
        counted = [
            asyncio.create_task(client.post("/tokenize", json={"prompt": "hi"})) for _ in range(3)
        ]
        try:
            await is_reading.wait()
            answer = await client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1})
        finally:
            may_end.set()
        assert answer.status_code == 200
        assert [(await one).json()["count"] for one in counted] == [2, 2, 2]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a", "b"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [10**12]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [1], "text": "a"}, "text"),
        ("/detokenize", [], None),
    ],
)
async def test_what_is_wrong_is_refused_by_its_name(path, body, param):
    error = (await asked(path, body))["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param


async def test_the_tokenizer_is_described_without_names_of_files():
    async with fake_engine() as engine, http_client(engine) as client:
        info = (await client.get("/tokenizer_info")).json()
    assert info["tokenizer_class"] and "{%" in info["chat_template"]
    assert info["eos_token"] == "<|end|>"
    assert "<|end|>" in [token["content"] for token in info["added_tokens_decoder"].values()]
    assert "nowhere" not in str(info)


async def test_the_tokens_of_a_response_s_input_are_counted_as_those_of_the_chat():
    chat = await asked("/tokenize", CHAT)
    counted = await asked("/v1/responses/input_tokens", {"input": "hi", "personality": "kind"})
    assert counted == {"object": "response.input_tokens", "input_tokens": chat["count"]}
