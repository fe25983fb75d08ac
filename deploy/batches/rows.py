"""A row of a batch in any of its formats, parsed into requests.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    {"messages": [...], "max_tokens": 64}      or {"prompt": "..."}; custom_id is optional
    {"question_id": 81, "category": "writing", "turns": ["...", "..."]}      Spec-Bench

A body is the JSON object that an OpenAI endpoint's URL expects. Each turn of a question follows the
answers to the turns before it. Rows of the last two kinds have our own defaults; those of the first
kind have OpenAI's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

CHAT, COMPLETIONS = URLS = ("/v1/chat/completions", "/v1/completions")
MAX_CUSTOM_ID_CHARACTERS = 512
MAX_TURNS = 16

_OWN_KEYS = ("custom_id", "method", "url")  # keys of a plain row; all others belong to its body


class BadRowError(ValueError):
    """A row that cannot be sent. `code` is for programs; `param` names the wrong key."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class Row:
    """The requests of a row."""

    url: str
    body: Mapping[str, Any]  # body of the first request
    later_turns: tuple[str, ...] = ()  # the user's next messages
    question: Mapping[str, Any] | None = None  # Spec-Bench's question_id and category


def custom_id_of(content: bytes, place: str) -> str:
    """Return the id of a row's result, for valid and invalid rows.

    It is the row's own custom_id, or else a question's number, or else `place`.
    """
    try:
        data = _object(content)
    except BadRowError:
        return place
    if "custom_id" not in data:
        question_id = data.get("question_id")
        return place if question_id is None else str(question_id)
    given = data["custom_id"]
    return given if isinstance(given, str) else json.dumps(given)


def parse_row(content: bytes, defaults: Mapping[str, Any]) -> Row:
    """Return the requests of a line. Raises BadRowError.

    defaults: default parameters of plain rows and questions.
    """
    data = _object(content)
    _check_custom_id(data)
    _check_sendable(data)
    if "body" in data:
        return _request(data)
    if "turns" in data:
        return _question(data, defaults)
    if "prompt" in data or "messages" in data:
        return _plain(data, defaults)
    _refuse(None, "a row needs `body`, `messages`, `prompt` or `turns`", got=sorted(data))


def _object(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise BadRowError("invalid_json", "the line is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise BadRowError("invalid_json", f"the line is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRowError("invalid_json", f"the line must be a JSON object, got {_show(data)}")
    return data


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _check_custom_id(data: Mapping[str, Any]) -> None:
    given = data.get("custom_id", "-")
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_CUSTOM_ID_CHARACTERS:
        right = f"custom_id must be a text of 1 to {MAX_CUSTOM_ID_CHARACTERS} characters"
        _refuse("custom_id", right, got=given)


def _check_sendable(data: Mapping[str, Any]) -> None:
    """Refuse what Python accepts but services do not: half a surrogate pair, and 1e999."""
    try:
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadRowError("invalid_json", f"the line is not JSON: {error}") from error


def _request(data: Mapping[str, Any]) -> Row:
    method, url, body = data.get("method", "POST"), data.get("url", CHAT), data["body"]
    if method != "POST":
        _refuse("method", "method must be POST", got=method)
    if url not in URLS:
        _refuse("url", f"url must be {' or '.join(URLS)}", got=url)
    if not isinstance(body, dict):
        _refuse("body", "body must be an object", got=body)
    return Row(url, _body(body))


def _plain(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> Row:
    url = CHAT if "messages" in data else COMPLETIONS
    if data.get("url", url) != url:
        _refuse("url", f"url must be {url} in a row with these keys", got=data["url"])
    given = {key: value for key, value in data.items() if key not in _OWN_KEYS}
    spelled = _for_url(defaults, url)
    if "max_completion_tokens" in given:  # another name of max_tokens
        spelled.pop("max_tokens", None)
    return Row(url, _body({**spelled, **given}))


def _question(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> Row:
    turns = data["turns"]
    is_texts = isinstance(turns, list) and all(isinstance(turn, str) for turn in turns)
    if not is_texts or not 1 <= len(turns) <= MAX_TURNS:
        _refuse("turns", f"turns must be a list of 1 to {MAX_TURNS} texts", got=turns)
    body = {**_for_url(defaults, CHAT), "messages": [{"role": "user", "content": turns[0]}]}
    question = {key: data.get(key) for key in ("question_id", "category")}
    return Row(CHAT, body, tuple(turns[1:]), question)


def _body(body: dict[str, Any]) -> dict[str, Any]:
    if body.get("stream"):
        _refuse("stream", "stream must be false in a batch, whose answers are read whole", got=True)
    if body.get("request_id") is not None:
        right = "request_id must be left out in a batch, which makes its own; custom_id names a row"
        _refuse("request_id", right, got=body["request_id"])
    return {key: value for key, value in body.items() if key not in ("stream", "stream_options")}


def _for_url(defaults: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return the defaults as a URL spells them: chat bodies request logprobs with two keys."""
    spelled = dict(defaults)
    if url == CHAT and "logprobs" in spelled:
        spelled |= {"logprobs": True, "top_logprobs": spelled["logprobs"]}
    return spelled


def _refuse(param: str | None, right: str, got: object) -> NoReturn:
    raise BadRowError("invalid_row", f"{right}, got {_show(got)}", param)


def _show(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
