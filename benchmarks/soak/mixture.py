"""What clients send: a seeded mixture of kinds of requests over few distinct ones.

Answers of one kind have similar lengths, so that the times that they take can be compared.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from diffuspec.bench.questions import load_questions
from diffuspec.pairs.tiny import QUESTIONS


class Kind(StrEnum):
    """What a request does."""

    STREAM = "stream"  # greedy
    WHOLE = "whole"  # sampled with a seed, not streamed
    SEVERAL = "n"  # two or three sampled answers
    FORM = "form"  # JSON of a schema, or a regular expression
    TOOL = "tool"  # a call that is demanded
    STOP = "stop"  # ends at a stop string
    ABORT = "abort"  # the client leaves in the middle
    SLOW = "slow"  # the client reads slowly
    BAD = "bad"  # refused


WEIGHTS: Mapping[Kind, int] = {
    Kind.STREAM: 32,
    Kind.WHOLE: 16,
    Kind.SEVERAL: 8,
    Kind.FORM: 10,
    Kind.TOOL: 8,
    Kind.STOP: 10,
    Kind.ABORT: 8,
    Kind.SLOW: 2,
    Kind.BAD: 6,
}
_NUM_DISTINCT: Mapping[Kind, int] = {  # BAD: see _BAD
    Kind.STREAM: 28,
    Kind.WHOLE: 14,
    Kind.SEVERAL: 8,
    Kind.FORM: 12,
    Kind.TOOL: 8,
    Kind.STOP: 10,
    Kind.ABORT: 8,
    Kind.SLOW: 4,
}
_MAX_LEFT_AFTER = 12  # chunks
_SAMPLED: Mapping[str, Any] = {"temperature": 0.8, "top_p": 0.95}
_WEATHER: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
_FORMS: Sequence[Mapping[str, Any]] = (
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "weather", "schema": _WEATHER},
        }
    },
    {"guided_regex": "[A-Z][a-z ]{40,60}[.]"},
)
_TOOL: Mapping[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": _WEATHER}}],
    "tool_choice": "required",
}
_LEFT: Sequence[Mapping[str, Any]] = (
    {"ignore_eos": True},
    {"ignore_eos": True, "n": 2},
    {"guided_regex": "([A-Z][a-z ]{20,40}[.] ){9}"},
    _TOOL,
)
_CHAT: Mapping[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
_BAD: Mapping[str, Mapping[str, Any]] = {
    "no messages": {"max_tokens": 8},
    "a role that does not exist": {"messages": [{"role": "nobody", "content": "Hello"}]},
    "an unknown key": {**_CHAT, "temprature": 0},
    "a text for a number": {**_CHAT, "temperature": "warm"},
    "n of 1,000": {**_CHAT, "n": 1000},
    "more tokens than the context": {**_CHAT, "max_tokens": 10**9},
    "a long prompt": {"messages": [{"role": "user", "content": "Hello " * 20_000}]},
    "a schema that contradicts itself": {
        **_CHAT,
        "guided_json": {"type": "object", "properties": 5},
    },
    "a grammar without end": {**_CHAT, "guided_grammar": "start: start"},
    "a call of no function": {**_CHAT, "tool_choice": "required"},
}


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and what its client does. Equal names mean equal bodies."""

    kind: Kind
    name: str
    body: Mapping[str, Any]
    left_after: int | None = None  # chunks after which the client leaves; None: it stays

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))


class Mixture:
    """The distinct requests, and the order in which each client sends them."""

    def __init__(self, seed: int, limit: int | None = None) -> None:
        """`limit`: the largest number of distinct requests of a kind; None: all."""
        self._seed = seed
        texts = [question.turns[0] for question in load_questions(QUESTIONS)]
        random.Random(seed).shuffle(texts)
        chats = itertools.cycle(texts)
        self._distinct = {
            kind: [_request(kind, number, next(chats)) for number in range(count)][:limit]
            for kind, count in _NUM_DISTINCT.items()
        }
        bad = [Request(Kind.BAD, name, body) for name, body in _BAD.items()]
        self._distinct[Kind.BAD] = bad[:limit]

    @property
    def answered(self) -> list[Request]:
        """The distinct requests that have an answer."""
        return [
            request
            for kind, requests in self._distinct.items()
            if kind is not Kind.BAD
            for request in requests
        ]

    def requests(self, client: int) -> Iterator[Request]:
        """Yield the requests of a client, by its number, without end."""
        rng = random.Random(f"{self._seed} {client}")
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        while True:
            [kind] = rng.choices(kinds, weights)
            request = rng.choice(self._distinct[kind])
            if kind is Kind.ABORT:
                left_after = rng.randint(0, _MAX_LEFT_AFTER)
                request = Request(kind, request.name, request.body, left_after)
            yield request


def _request(kind: Kind, number: int, text: str) -> Request:
    """Return a request with an answer; number: among the distinct ones of its kind."""
    body = {
        "messages": [{"role": "user", "content": text}],
        "return_token_ids": True,
        **_parameters(kind, number),
    }
    return Request(kind, f"{kind} {number}", body)


def _parameters(kind: Kind, number: int) -> Mapping[str, Any]:
    greedy, sampled = {"temperature": 0}, {**_SAMPLED, "seed": number}
    either = greedy if number // 2 % 2 else sampled
    is_even = number % 2 == 0
    match kind:
        case Kind.STREAM:
            return {**greedy, "stream": True, "min_tokens": 48, "max_tokens": 96}
        case Kind.WHOLE:
            return {**sampled, "min_tokens": 48, "max_tokens": 96}
        case Kind.SEVERAL:
            n = 2 + number % 2
            return {**sampled, "stream": is_even, "n": n, "min_tokens": 24, "max_tokens": 48}
        case Kind.FORM:
            form = _FORMS[number % len(_FORMS)]
            return {**form, **either, "max_tokens": 160}
        case Kind.TOOL:
            return {**_TOOL, **either, "stream": is_even, "max_tokens": 160}
        case Kind.STOP:
            stops = {"stop": [" the", ".", "!"], "min_tokens": 16, "max_tokens": 64}
            return {**either, **stops, "stream": is_even}
        case Kind.ABORT:
            wanted = _LEFT[number % len(_LEFT)]
            return {**sampled, **wanted, "stream": True, "max_tokens": 200}
        case Kind.SLOW:
            many = {"logprobs": True, "top_logprobs": 20}  # more than buffers on the way hold
            return {**sampled, **many, "stream": True, "ignore_eos": True, "max_tokens": 200}
    raise AssertionError(kind)
