"""Prompts that are long, that guess what others have sent, or that speak in another's role."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.abuse.attack import Answers, Attack, Clients
from benchmarks.abuse.target import TEXT, Target, summary

_NUM_PROMPTS, _PROMPT_TOKENS = 64, 1_200
_NUM_BODIES, _BODY_CHARACTERS = 24, 1_000_000
_FIRST_ID, _NUM_IDS = 16, 1_000  # ids of usual tokens
_SHARED_TOKENS, _SECRET_TOKENS = (
    200,
    400,
)  # tokens of a prompt before its secret digit, and from it on
_NUM_DIGITS, _SECRET = 10, 7
_CHAT = "/v1/chat/completions"
_MARKS = ("<|im_end|>", "<|im_start|>")
_NUM_MARKS = 8
_ATTEMPTS = 3  # attempts, for other requests may push a prompt out of the cache


def prompt_attacks() -> Sequence[Attack]:
    return [
        Attack("a template's tokens in a user's text", "text", _speak_as_others),
        Attack(
            "another key's prompt, guessed by cached_tokens",
            "nothing told",
            _guess,
            needs_keys=True,
        ),
        Attack(
            f"{_NUM_PROMPTS} prompts of {_PROMPT_TOKENS:,} tokens, max_requests 1",
            "200|429 .*",
            _many_prompts,
            needs_keys=True,
        ),
        Attack(f"{_NUM_BODIES} bodies of 1 MB to /tokenize", "200|400 .*|429 .*", _long_texts),
    ]


async def _speak_as_others(clients: Clients, number: int) -> Answers:
    """Put tokens of the chat template into a user's text: as markup they would be one each."""
    target, answers = clients.attacker, []
    empty = await _num_chat_tokens(target, "")
    for mark in _MARKS:
        num_tokens = await _num_chat_tokens(target, mark * _NUM_MARKS) - empty
        is_text = num_tokens >= 2 * _NUM_MARKS
        answers.append("text" if is_text else f"{num_tokens} tokens for {_NUM_MARKS} {mark}")
    return answers


async def _num_chat_tokens(target: Target, text: str) -> int:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    async with target.client() as client:
        reply = await client.post(_CHAT, json=body)
        return int(reply.raise_for_status().json()["usage"]["prompt_tokens"])


async def _guess(clients: Clients, number: int) -> Answers:
    """Try all digits of a secret behind a beginning that another key's prompt has."""
    first = await _num_cached(clients.other, number, _SECRET)
    for _ in range(_ATTEMPTS):
        if (cached := await _num_cached(clients.other, number, _SECRET)) > first:
            break
    else:
        return [f"its own prompt has {cached} cached tokens, {first} at first"]
    digits = sorted(range(_NUM_DIGITS), key=lambda digit: digit == _SECRET)
    numbers = {digit: await _num_cached(clients.attacker, number, digit) for digit in digits}
    told = numbers.pop(_SECRET) > max(numbers.values())
    return ["the digit is told" if told else "nothing told"]


async def _num_cached(target: Target, number: int, digit: int) -> int:
    """Return the cached tokens of a prompt with a secret digit in the middle."""
    shared = [_id(number + 1, place) for place in range(_SHARED_TOKENS)]
    prompt = [*shared, *[_FIRST_ID + digit] * _SECRET_TOKENS]
    async with target.client() as client:
        reply = await client.post(TEXT, json={"prompt": prompt, "max_tokens": 1})
        details = reply.raise_for_status().json()["usage"].get("prompt_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)


async def _many_prompts(clients: Clients, number: int) -> Answers:
    prompts = [
        [_id(number * _NUM_PROMPTS + count, place) for place in range(_PROMPT_TOKENS)]
        for count in range(_NUM_PROMPTS)
    ]
    return [await clients.limited.post_json(TEXT, {"prompt": prompts, "max_tokens": 4})]


async def _long_texts(clients: Clients, number: int) -> Answers:
    async with clients.attacker.client() as client:
        text = f"{number} " + "words of a long text, " * (_BODY_CHARACTERS // 22)
        posts = (client.post("/tokenize", json={"prompt": text}) for _ in range(_NUM_BODIES))
        return [summary(reply) for reply in await asyncio.gather(*posts)]


def _id(seed: int, place: int) -> int:
    """Return the id of a token at a place of a prompt; other seeds give other prompts."""
    return _FIRST_ID + (seed * 7_919 + place * 131 + place * place) % _NUM_IDS
