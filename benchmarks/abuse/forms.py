"""Forms of answers that cost too much to compile, or at which native code dies."""

from __future__ import annotations

import asyncio
import itertools
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.abuse.attack import Answers, Attack, Clients
from benchmarks.abuse.target import TEXT
from benchmarks.odd_forms import Forms

_DEADLY = '{"properties": {"id": {"const": -9223372036854775808}}}'
_GRAMMAR = "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(60)) + '\nT60: "a"'
_NUM_EACH = 4  # forms of each costly kind that are sent at once
_NUM_REQUIRED = 4_300  # names, so short that they fit into a form
_NAMES = ["".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=3)]
_NUM_RANDOM = 64
_CONCURRENT = 8  # random forms at a time
_REFUSED_FORM = "400 (guided_json|guided_regex|guided_grammar|response_format.*)"


def form_attacks() -> Sequence[Attack]:
    """Return an attack for each kind of form, and one for clients that leave."""
    costly = f"{_REFUSED_FORM}|429 .*|503 .*"  # 503: late by the clock, since others compute, too
    return [
        _form("a grammar that doubles 60 times", {"guided_grammar": _GRAMMAR}),
        _form("a regex of 10^9 characters", {"guided_regex": "((a{1000}){1000}){1000}"}),
        _form("a JSON schema 300 levels deep", {"guided_json": _nested(300)}),
        Attack("16 costly forms at once", f"{costly}|200", _costly, needs_forms=True),
        Attack(
            "16 clients leave costly forms", "0 requests run afterwards", _left, needs_forms=True
        ),
        Attack("3 deadly forms", _REFUSED_FORM, _deadly, needs_forms=True),
        Attack(f"{_NUM_RANDOM} random forms", "200|400( .*)?|503 .*", _random, needs_forms=True),
    ]


def costly_forms(number: int) -> Sequence[Mapping[str, Any]]:
    """Return forms that took minutes and gigabytes where nothing bounded them.

    The forms of each number are others, so that no refusal is remembered.
    """
    forms: list[Mapping[str, Any]] = []
    for variant in range(number * _NUM_EACH, (number + 1) * _NUM_EACH):
        shifts = range(variant, variant + 20)
        patterns = [f".*a.{{{shift}}}b.*" for shift in shifts]
        names = _NAMES[variant : variant + _NUM_REQUIRED]
        terminal = " & ".join(f"/.*a.{{{shift}}}b.*/" for shift in shifts)
        forms += [
            {
                "guided_json": {
                    "type": "string",
                    "allOf": [{"pattern": pattern} for pattern in patterns],
                }
            },
            {"guided_json": {"type": "integer", "multipleOf": 1_000_003 + 2 * variant}},
            {"guided_json": {"type": "object", "required": names}},
            {"guided_grammar": f"start: A\nA: {terminal}"},
        ]
    return forms


def _form(name: str, form: Mapping[str, Any]) -> Attack:
    async def send(clients: Clients, number: int) -> Answers:
        return [await clients.attacker.post_json(TEXT, {"prompt": "a", **form})]

    return Attack(name, "400( .*)?", send, needs_forms=True)  # a body that is too deep has no key


async def _costly(clients: Clients, number: int) -> Answers:
    bodies = [_body(form) for form in costly_forms(2 * number)]
    return await asyncio.gather(*(clients.attacker.post_json(TEXT, body) for body in bodies))


async def _left(clients: Clients, number: int) -> Answers:
    target = clients.attacker
    bodies = [json.dumps(_body(form)).encode() for form in costly_forms(2 * number + 1)]
    wholes = [target.head(TEXT, len(body)) + body for body in bodies]
    await asyncio.gather(*(target.leave(whole) for whole in wholes))
    return [await target.until_idle()]


async def _deadly(clients: Clients, number: int) -> Answers:
    schema = {"name": "a", "schema": json.loads(_DEADLY)}
    forms: list[Mapping[str, Any]] = [
        {"guided_json": _DEADLY},
        {"guided_grammar": f"start: a\na: %json {_DEADLY}"},
        {"response_format": {"type": "json_schema", "json_schema": schema}},
    ]
    return [await clients.attacker.post_json(TEXT, _body(form)) for form in forms]


async def _random(clients: Clients, number: int) -> Answers:
    forms, places = Forms(number), asyncio.Semaphore(_CONCURRENT)

    async def send(form: str) -> str:
        async with places:
            body = f'{{"prompt": "a", "max_tokens": 4, {form}}}'.encode()
            return await clients.attacker.post(TEXT, body)

    return await asyncio.gather(*(send(forms.form()) for _ in range(_NUM_RANDOM)))


def _body(form: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"prompt": "a", "max_tokens": 4, **form}


def _nested(num_levels: int) -> Any:
    nested: Any = {"type": "string"}
    for _ in range(num_levels):
        nested = {"type": "array", "items": nested}
    return nested
