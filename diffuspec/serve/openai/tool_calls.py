"""Calls between clients and chat templates: their ids and arguments."""

from __future__ import annotations

import hashlib
import json
import re
import string
from typing import Any

from pydantic_core import from_json

_SHORT = re.compile(r"[A-Za-z0-9]{9}")
_LETTERS = string.ascii_letters + string.digits


def call_id(name: str, *, is_short: bool) -> str:
    """Return the id of a call, at most 40 characters, derived from a unique name.

    is_short: nine letters and digits, as required by Mistral's chat templates.
    """
    digest = hashlib.blake2b(name.encode(), digest_size=12)
    return _short(digest.digest()) if is_short else f"call_{digest.hexdigest()}"


def known_to_template(given: str, *, is_short: bool) -> str:
    """Return an id sent back by a client in the form that the chat template accepts."""
    return call_id(given, is_short=True) if is_short and not _SHORT.fullmatch(given) else given


def read_arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call in a conversation as an object, for chat templates.

    Truncated arguments are read as far as possible. Anything that is not an object becomes the only
    member of one.
    """
    if not text.strip():
        return {}
    try:
        arguments = from_json(text, allow_partial="trailing-strings", allow_inf_nan=False)
        json.dumps(arguments, allow_nan=False)  # 1e999 is parsed as infinite
    except ValueError:
        arguments = text
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _short(digest: bytes) -> str:
    number, letters = int.from_bytes(digest), ""
    for _ in range(9):
        number, place = divmod(number, len(_LETTERS))
        letters += _LETTERS[place]
    return letters
