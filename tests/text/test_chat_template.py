"""Chat templates: of files, and those that take a single system message."""

from __future__ import annotations

from typing import Any

import pytest

from diffuspec.core.errors import ConfigError, InvalidRequestError
from diffuspec.pairs.tiny import TARGET
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.chat_template import read_template
from diffuspec.text.prompt import encode_prompt
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.chat_models import QWEN, chat_tokenizer
from tests.support.service import fake_engine, http_client

TURN = "[{{ message.role }}]{{ message.content }}"
ANY = "{% for message in messages %}" + TURN + "{% endfor %}"
STRICT = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    + TURN
    + "{% endfor %}"
)
DROPS = (
    "{% for message in messages %}{% if loop.first or message.role != 'system' %}"
    + TURN
    + "{% endif %}{% endfor %}"
)
PARTS = STRICT.replace(
    "{{ message.content }}", "{% for part in message.content %}{{ part.text }};{% endfor %}"
)
NO_SYSTEM = "{% for message in messages if message.role == 'user' %}" + TURN + "{% endfor %}"


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def rendered(template: str, *messages: dict[str, Any]) -> str:
    tokenizer = chat_tokenizer(QWEN)
    tokenizer.chat_template = template
    text: str = tokenizer.decode(encode_prompt([*messages], tokenizer, None))
    return text


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (ANY, "[system]a[developer]b[system]c[user]d"),
        (STRICT, "[system]a\n\nb\n\nc[user]d"),
        (DROPS, "[system]a\n\nb\n\nc[user]d"),
        (PARTS, "[system]a;b;c;[user]d;"),
        (NO_SYSTEM, "[user]d"),
    ],
    ids=["takes all", "refuses", "drops", "takes parts", "takes none"],
)
def test_leading_system_and_developer_messages_are_joined_where_a_template_takes_one(
    template, expected
):
    messages = said("system", "a"), said("developer", "b"), said("system", "c"), said("user", "d")
    assert rendered(template, *messages) == expected


def test_one_system_message_and_those_after_others_are_left_as_they_are():
    assert rendered(STRICT, said("system", "a"), said("user", "b")) == "[system]a[user]b"
    assert rendered(STRICT, said("developer", "a"), said("user", "b")) == "[developer]a[user]b"
    with pytest.raises(InvalidRequestError, match="System message must be at the beginning"):
        rendered(STRICT, said("user", "a"), said("system", "b"))


def test_an_empty_system_message_adds_nothing():
    messages = said("system", ""), said("system", "a"), said("user", "b")
    assert rendered(STRICT, *messages) == "[system]a[user]b"


async def test_the_instructions_and_developer_messages_of_codex_are_answered():
    engine = fake_engine()
    engine.tokenizer.chat_template = STRICT
    body = {
        "instructions": "Be a coding agent.",
        "input": [said("developer", "Be brief."), said("user", "Hi")],
        "max_output_tokens": 4,
    }
    async with engine, http_client(engine, ServeSettings()) as client:
        response = await client.post("/v1/responses", json=body)
        assert response.status_code == 200, response.text
        counted = await client.post(
            "/tokenize",
            json={"messages": [said("system", "a"), said("system", "b"), said("user", "c")]},
        )
        assert counted.json()["count"] == len("[system]a\n\nb[user]c")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{% for m in messages %}\n{{ m.role }}\n{% endif %}", "is wrong in line 3: "),
        ("", "must have 1 to 1048576 characters"),
        (b"\xff", "it is not UTF-8"),
        (None, "No such file"),
    ],
)
def test_a_file_that_holds_no_chat_template_is_refused_with_the_place(tmp_path, text, problem):
    path = tmp_path / "a.jinja"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=problem) as caught:
        read_template(path)
    assert str(path) in str(caught.value)


def test_a_file_may_replace_the_template_of_a_model_even_if_it_refuses_some_chats(tmp_path):
    path = tmp_path / "a.jinja"
    path.write_text("{{ raise_exception('a system message is needed') }}")
    assert load_tokenizer(TARGET, path).chat_template == path.read_text()
    assert load_tokenizer(TARGET).chat_template != path.read_text()
