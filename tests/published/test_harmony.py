"""gpt-oss's channels are read as openai-harmony reads them, with the published tokenizer."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import openai_harmony as harmony
import pytest

from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.reading.harmony import HarmonyReader
from diffuspec.serve.openai.reading.pieces import Call, Thought, calls_in
from diffuspec.serve.openai.reading.readers import make_reader
from diffuspec.text.token_bytes import reader_of
from tests.support.published import published_path, published_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ULM = '{"city": "Ulm"}'


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return published_tokenizer("gptoss").backend_tokenizer


@pytest.fixture(scope="module")
def encoding(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return harmony's encoding; its ranks, which it would download, are those of the tokenizer."""
    data = json.loads((published_path("gptoss") / "tokenizer.json").read_text())
    read, added = reader_of(data["decoder"]), {token["id"] for token in data["added_tokens"]}
    assert read is not None
    ranks = sorted(
        (i, read(token)) for token, i in data["model"]["vocab"].items() if i not in added
    )
    folder = tmp_path_factory.mktemp("harmony")
    rows = (f"{base64.b64encode(token).decode()} {i}\n" for i, token in ranks)
    (folder / "o200k_base.tiktoken").write_text("".join(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "TIKTOKEN_ENCODINGS_BASE", str(folder))
        return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def said(channel: str, text: str, recipient: str = "", kind: str = "") -> Any:
    message = harmony.Message.from_role_and_content(harmony.Role.ASSISTANT, text)
    message = message.with_channel(channel)
    if recipient:
        message = message.with_recipient(recipient)
    return message.with_content_type(kind) if kind else message


THOUGHT = ("analysis", "Look it up.")
CALLED = ("commentary", ULM, "functions.weather", "<|constrain|>json")
ANSWERS: dict[str, list[tuple[str, ...]]] = {
    "an answer": [("final", "Sunny, 22 °C.\n\n東京")],
    "a thought and an answer": [THOUGHT, ("final", "Sunny.")],
    "a call": [THOUGHT, CALLED],
    "a call of another content type": [("commentary", ULM, "functions.weather", "json")],
    "a call after words": [THOUGHT, ("commentary", "I look."), CALLED],
    "two calls": [CALLED, ("commentary", "{}", "functions.clock", "<|constrain|>json")],
    "thoughts apart": [THOUGHT, ("analysis", "So."), ("final", "Yes.")],
}


def read(text: str, size: int) -> tuple[list[str], str, list[Call]]:
    """Return the reasoning, the content and the calls of an answer that comes in parts."""
    reader = make_reader(Conventions("openai", "openai_gptoss"), [], "open")
    assert isinstance(reader, HarmonyReader)
    pieces = [p for at in range(0, len(text), size) for p in reader.read(text[at : at + size])]
    pieces += reader.finish()
    thoughts = [piece.text for piece in pieces if isinstance(piece, Thought)]
    return thoughts, "".join(p for p in pieces if isinstance(p, str)), calls_in(pieces)


@pytest.mark.parametrize("size", [1, 9, 10_000])
@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_answers_are_read_as_by_harmony(name, size, encoding, tokenizer):
    messages = [said(*one) for one in ANSWERS[name]]
    ids = encoding.render_conversation(harmony.Conversation.from_messages(messages))
    begun = encoding.encode("<|start|>assistant", allowed_special="all")
    assert ids[: len(begun)] == begun, "which is of the prompt"
    ids = ids[len(begun) :]
    text = tokenizer.decode(ids, skip_special_tokens=False)
    assert text == encoding.decode(ids), "both know the same tokens"
    parsed = encoding.parse_messages_from_completion_tokens(ids, harmony.Role.ASSISTANT)
    thoughts, content, calls = read(text, size)
    expected: dict[str, list[Any]] = {"analysis": [], "calls": [], "content": []}
    for message in parsed:
        [part] = message.content
        if message.recipient and message.recipient.startswith("functions."):
            call = Call(message.recipient.removeprefix("functions."), part.text)
            expected["calls"].append(call)
        else:
            kind = "analysis" if message.channel == "analysis" else "content"
            expected[kind].append(part.text)
    assert "".join(thoughts) == "".join(expected["analysis"])
    assert content == "".join(expected["content"])
    assert calls == expected["calls"]


@pytest.mark.parametrize("name", ["a call after words", "a thought and an answer"])
def test_an_answer_that_is_cut_anywhere_has_what_harmony_has_by_then(name, encoding, tokenizer):
    messages = [said(*one) for one in ANSWERS[name]]
    ids = encoding.render_conversation(harmony.Conversation.from_messages(messages))[2:]
    parser = harmony.StreamableParser(encoding, role=harmony.Role.ASSISTANT)
    seen = {"analysis": "", "content": "", "arguments": ""}
    for number, token_id in enumerate(ids, start=1):
        parser.process(token_id)
        if parser.last_content_delta:
            key = "analysis" if parser.current_channel == "analysis" else "content"
            key = "arguments" if parser.current_recipient else key
            seen[key] += parser.last_content_delta
        text = tokenizer.decode(ids[:number], skip_special_tokens=False)
        if text.endswith("\ufffd"):
            continue
        thoughts, content, calls = read(text, 10_000)
        assert "".join(thoughts) == seen["analysis"]
        assert content == seen["content"]
        assert "".join(call.arguments for call in calls) == seen["arguments"]
