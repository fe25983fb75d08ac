"""The keys of a body that are not obeyed: ignored, ignored and named, or refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from diffuspec.core.parameter import declared
from diffuspec.core.params import SamplingParams
from diffuspec.serve.openai.bodies import ChatBody, CompletionBody
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.forms import WORDS
from diffuspec.serve.openai.key_table import LABELS, OTHER_WORDS, REFUSED, UNUSED
from diffuspec.serve.openai.near_keys import near_key, plain

_MAX_SHOWN = 64  # characters of a key in messages
_MAX_UNKNOWN = 64  # unknown keys of a body: each is compared with all known ones
_OTHER = re.compile(r"[^A-Za-z0-9._-]")
_SHAPED = frozenset({"logprobs", "max_tokens", "prompt_logprobs", "structured_output"})
SAMPLING = frozenset(parameter.name for parameter in declared(SamplingParams))
# Keys of a chat that other APIs lack, and that mean the same in them.
EXTENSIONS = SAMPLING - _SHAPED | {
    "chat_template_kwargs",
    "include_reasoning",
    "prediction",
    "priority",
    "request_id",
    "speculation",
    "thinking",
    "thinking_token_budget",
    "truncate_prompt_tokens",
    "truncation_side",
}
_OF_CHATS = frozenset(ChatBody.model_fields) | WORDS | _SHAPED
_OF_ALL = _OF_CHATS | CompletionBody.model_fields.keys()
_BY_PLAIN_NAME = {plain(name): name for name in (*REFUSED, *OTHER_WORDS)}
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


def check_extensions(
    extras: Mapping[str, Any],
    known: Collection[str],
    names: Mapping[str, str],
    *,
    is_strict: bool,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of another API's body that it shares with chats, and the ignored ones.

    extras: its keys besides its declared ones, `known`. names: its words for keys of a chat. Raises
    BadRequestError, as `check_rest`.
    """
    shared = {name: value for name, value in extras.items() if name in EXTENSIONS}
    rest = {name: value for name, value in extras.items() if name not in EXTENSIONS}
    for name in rest.keys() & _OF_CHATS:
        ours = names.get("response_format" if name in WORDS else name)
        ours = names.get("max_tokens") if name == "max_completion_tokens" else ours
        if ours is not None:
            raise BadRequestError(f"{name} is {ours} in this API", name, "unknown_parameter")
    return shared, check_rest(rest, {*known, *EXTENSIONS}, names, is_strict=is_strict)


def check_rest(
    rest: Mapping[str, Any],
    known: Collection[str],
    names: Mapping[str, str] = _NO_NAMES,
    *,
    num_choices: int = 1,
    is_strict: bool,
) -> tuple[str, ...]:
    """Return the ignored keys that the answer has to name. `rest`: the keys that are not read.

    known: the keys that the body may have. names: an API's words for keys of a chat. is_strict:
    refuse keys that are to be named. Raises BadRequestError naming a key that is refused, or that
    is nearly a known one.
    """
    ignored = []
    for name, value in rest.items():
        if name in LABELS or (name == "best_of" and value == num_choices):
            continue
        listed = _BY_PLAIN_NAME.get(plain(name[:_MAX_SHOWN]), name)
        if listed not in known and _is_neutral(name, listed, value, names):
            continue
        if name not in UNUSED:
            _check_unknown(name, known)
        if is_strict:
            raise BadRequestError(
                f"unknown parameter {shown(name)!r}, which a strict service refuses",
                shown(name),
                "unknown_parameter",
            )
        ignored.append(name)
        if len(ignored) > _MAX_UNKNOWN:
            raise BadRequestError(f"the body must have at most {_MAX_UNKNOWN} unknown keys")
    return tuple(map(shown, ignored))


def _is_neutral(name: str, listed: str, value: object, names: Mapping[str, str]) -> bool:
    """Return whether a key has its neutral value in the table; False for a key that is not in it.

    listed: the key as the table writes it. Raises BadRequestError for any other value, and for
    another server's word.
    """
    if (ours := OTHER_WORDS.get(listed)) is not None:
        raise BadRequestError(
            f"{shown(name)} is another server's word: use {names.get(ours, ours)}",
            shown(name),
            "unsupported_parameter",
        )
    refused = REFUSED.get(listed)
    if refused is not None and value != refused.neutral:
        raise BadRequestError(refused.reason, shown(name), "unsupported_parameter")
    return refused is not None


def _check_unknown(name: str, known: Collection[str]) -> None:
    """Raise BadRequestError for a key of another API, and for one that is nearly a known one."""
    if name in _OF_ALL:
        raise BadRequestError(f"{name!r} is not a parameter of this API", name, "unknown_parameter")
    if (meant := near_key(name, known)) is not None:
        raise BadRequestError(
            f"unknown parameter {shown(name)!r}; did you mean {meant!r}?",
            shown(name),
            "unknown_parameter",
        )


def shown(name: str) -> str:
    """Return a client's key for logs and headers: short, of plain characters."""
    return _OTHER.sub("?", name[:_MAX_SHOWN])
