"""The forms of a row, and what is said of one that is wrong."""

import json

import pytest

from deploy.batches.rows import CHAT, COMPLETIONS, BadRowError, custom_id_of, parse_row

DEFAULTS = {"temperature": 0.5, "max_tokens": 8, "logprobs": 2}
MESSAGES = [{"role": "user", "content": "Hi"}]


def encoded(data: object) -> bytes:
    return json.dumps(data).encode()


def test_a_request_of_openai_keeps_its_body_and_gets_no_defaults():
    body = {"model": "m", "messages": MESSAGES, "stream": False}
    row = parse_row(
        encoded({"custom_id": "a", "method": "POST", "url": CHAT, "body": body}), DEFAULTS
    )
    assert (row.url, row.body) == (CHAT, {"model": "m", "messages": MESSAGES})


def test_plain_chats_and_prompts_get_defaults_below_their_own_parameters():
    row = parse_row(encoded({"messages": MESSAGES, "max_tokens": 3}), DEFAULTS)
    chat = {"temperature": 0.5, "max_tokens": 3, "logprobs": True, "top_logprobs": 2}
    assert (row.url, row.body) == (CHAT, {**chat, "messages": MESSAGES})
    row = parse_row(encoded({"custom_id": "b", "prompt": "Once"}), DEFAULTS)
    assert (row.url, row.body) == (COMPLETIONS, {**DEFAULTS, "prompt": "Once"})


def test_the_other_name_of_max_tokens_replaces_the_default():
    row = parse_row(encoded({"messages": MESSAGES, "max_completion_tokens": 3}), {"max_tokens": 8})
    assert row.body == {"messages": MESSAGES, "max_completion_tokens": 3}


def test_a_question_is_its_first_turn_and_later_ones():
    data = {"question_id": 81, "category": "writing", "turns": ["one", "two"], "reference": []}
    row = parse_row(encoded(data), {})
    assert row.body == {"messages": [{"role": "user", "content": "one"}]}
    assert row.later_turns == ("two",)
    assert row.question == {"question_id": 81, "category": "writing"}


@pytest.mark.parametrize(
    ("line", "param", "text"),
    [
        ("{", None, "the line is not JSON"),
        ("[" * 100_000, None, "the line is not JSON"),
        ('{"prompt": NaN}', None, "NaN is no number"),
        ('{"prompt": "a", "temperature": 1e999}', None, "the line is not JSON"),
        (r'{"prompt": "\ud83d"}', None, "surrogates not allowed"),
        ("[1]", None, "must be a JSON object, got [1]"),
        ("{}", None, "a row needs `body`, `messages`, `prompt` or `turns`, got []"),
        ('{"custom_id": 7, "prompt": "a"}', "custom_id", "a text of 1 to 512 characters, got 7"),
        ('{"custom_id": "", "prompt": "a"}', "custom_id", 'got ""'),
        ('{"body": [], "custom_id": "a"}', "body", "body must be an object, got []"),
        ('{"body": {}, "method": "GET"}', "method", 'method must be POST, got "GET"'),
        ('{"body": {}, "url": "/v1/embeddings"}', "url", "url must be /v1/chat/completions or"),
        ('{"prompt": "a", "url": "/v1/chat/completions"}', "url", "must be /v1/completions"),
        ('{"prompt": "a", "stream": true}', "stream", "stream must be false in a batch"),
        (
            '{"prompt": "a", "request_id": "r"}',
            "request_id",
            "request_id must be left out in a batch",
        ),
        ('{"turns": []}', "turns", "turns must be a list of 1 to 16 texts, got []"),
        ('{"turns": ["a", 1]}', "turns", 'got ["a", 1]'),
    ],
)
def test_a_wrong_row_is_refused_by_the_key_that_is_wrong(line, param, text):
    with pytest.raises(BadRowError) as refused:
        parse_row(line.encode(), {})
    assert refused.value.param == param
    assert text in str(refused.value)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"custom_id": "a", "question_id": 3}, "a"),
        ({"question_id": 81}, "81"),
        ({"prompt": "a"}, "line-12"),
        ({"custom_id": 7}, "7"),
        ([1], "line-12"),
    ],
)
def test_every_row_has_an_id_for_its_result(row, expected):
    assert custom_id_of(encoded(row), "line-12") == expected
