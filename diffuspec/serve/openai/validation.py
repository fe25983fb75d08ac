"""Validates bodies against their declarations; errors name the key, never quoting users' text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from diffuspec.serve.openai.errors import BadRequestError

_PROBLEMS = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "model_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be a list",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
}

# What clients send to another path than they mean, with the path that takes it.
_ELSEWHERE = {
    "input": "/v1/responses",
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
}

B = TypeVar("B", bound=BaseModel)


def keys_of(body: object) -> dict[str, Any]:
    """Return a body's keys that are not null; null is the same as not given."""
    if not isinstance(body, Mapping):
        raise BadRequestError("the body must be a JSON object")
    return {str(key): value for key, value in body.items() if value is not None}


def validated(kind: type[B], given: Mapping[str, Any]) -> B:
    """Return a body as declared. Raises BadRequestError for the first wrong key."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        # Report only the best-matching members of a union.
        param = _place(max(problems, key=lambda one: len(one["loc"]))["loc"])
        here = [one for one in problems if _place(one["loc"]) == param]
        what = " or ".join(dict.fromkeys(map(_problem, here))).replace(" or must be ", " or ")
        if type(here[0]["input"]) in (int, float):
            what += f", got {here[0]['input']!r:.80}"
        if what == _PROBLEMS["missing"] and param in _ELSEWHERE:
            what += "".join(
                f"; {key} is for {_ELSEWHERE[key]}" for key in _ELSEWHERE.keys() & given
            )
        joint = " " if what.startswith(("must ", "is ")) else ": "
        raise BadRequestError(f"{param}{joint}{what}", param) from None


def _place(parts: Sequence[str | int]) -> str:
    """Return a key, without pydantic's names of a union's types."""
    return ".".join(str(part) for part in parts if not _is_kind(str(part)))[:80]


def _is_kind(part: str) -> bool:
    return part == "str" or "[" in part or part[:1].isupper()


def _problem(problem: ErrorDetails) -> str:
    kind = problem["type"]
    if kind in _PROBLEMS:
        return _PROBLEMS[kind]
    if kind == "greater_than_equal":
        return f"must be {problem['ctx']['ge']} or more"
    if kind == "less_than_equal":
        return f"must be at most {problem['ctx']['le']}"
    what = re.sub("^(Input should|String should|Value error, must) ", "must ", problem["msg"])
    return re.sub("^(?:List|Dictionary) should have (.* items?) after.*", r"must have \1", what)


_REQUEST_ID = re.compile(r"[A-Za-z0-9._#:-]{1,128}")  # Kong counts with "#", Istio joins with ":"


def check_request_id(given: str) -> str:
    """Return a client's id for its request. Raises ValueError."""
    if not _REQUEST_ID.fullmatch(given):
        raise ValueError("must be at most 128 of A-Z a-z 0-9 . _ # : -")
    return given
