"""Random JSON Schemas mean to grammars what they mean to the jsonschema package."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator, validators
from llguidance import LLMatcher

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from tests.support.drawn_schemas import CASES, Case
from tests.support.tiny_target import EOS, GRAMMARS, decode, encode

_PLACED = re.compile(r"cannot be used: (#[^ ]*( |: )|no value fits|no text has)|too complex|nested")
_EMPTY = re.compile(r"no value fits|no text has")
_LIMIT = 2**63 - 1024  # largest number drawn: floats are sparse between it and 2^63
_NUM_TOKENS = 120
_CLOSING = encode('"}],:0')


def _is_whole(_: Any, value: object) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool) and value % 1 == 0


_Validator = validators.extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole),
)


def exact(value: Any) -> Any:
    """Return a value of JSON whose floats are decimals, which compare exactly."""
    return json.loads(json.dumps(value), parse_float=Decimal)


def written(value: Any) -> str:
    """Return a value as JSON whose numbers have no exponent."""
    if isinstance(value, Decimal):
        text = f"{value:f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return (
            f"{{{', '.join(f'{json.dumps(key)}: {written(one)}' for key, one in value.items())}}}"
        )
    return json.dumps(value, ensure_ascii=False)


def numbers_in(value: Any) -> list[Any]:
    if isinstance(value, list | dict):
        parts = value.values() if isinstance(value, dict) else value
        return [number for part in parts for number in numbers_in(part)]
    return [value] if isinstance(value, int | Decimal) and not isinstance(value, bool) else []


def draw(matcher: LLMatcher, seed: int) -> str | None:
    """Return a random text of a form; None if it does not end soon."""
    rng = random.Random(seed)
    drawn: list[int] = []
    for _ in range(_NUM_TOKENS):
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        ids = np.unpackbits(mask, bitorder="little").nonzero()[0].tolist()
        if not ids or matcher.is_error():
            return None
        if matcher.is_accepting() and (rng.random() < 0.4 or ids == [EOS]):
            return decode(drawn)
        closing = [text for text in _CLOSING if text in ids]
        token_id = rng.choice(closing if closing and rng.random() < 0.6 else ids)
        if token_id != EOS and matcher.consume_token(token_id):
            drawn.append(token_id)
    return None


def check(case: Case, counts: dict[str, int]) -> None:
    """Check that texts of the form are valid, and the value allowed; or the schema refused."""
    schema, value = case[0], exact(case[1])
    validator = _Validator(exact(schema))
    is_small = all(abs(number) < _LIMIT for number in numbers_in(value))
    try:
        matcher = GRAMMARS.compile(StructuredOutput(json_schema=json.dumps(schema)))
    except InvalidRequestError as error:
        assert _PLACED.search(str(error)), (schema, str(error))
        if _EMPTY.search(str(error)):
            assert not (is_small and validator.is_valid(value)), (schema, value)
        counts["refused"] += 1
        return
    for seed in range(3):
        text = draw(matcher.deep_copy(), seed)
        if text is not None:
            assert validator.is_valid(json.loads(text, parse_float=Decimal)), (schema, text)
            counts["texts"] += 1
    if is_small and validator.is_valid(value):
        ids = encode(written(value))
        is_taken = matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()
        assert is_taken, (schema, written(value))
        counts["values"] += 1


def test_random_schemas_are_obeyed_or_refused_with_their_place(request: pytest.FixtureRequest):
    num_schemas = request.config.getoption("--schemas")
    counts = dict.fromkeys(("refused", "texts", "values"), 0)

    @settings(max_examples=num_schemas, suppress_health_check=[*HealthCheck])
    @given(case=CASES)
    def obeyed(case: Case) -> None:
        with localcontext(prec=400):
            check(case, counts)

    obeyed()
    print(f"{num_schemas} schemas: {counts}")
    assert counts["values"] > num_schemas // 6 and counts["texts"] > num_schemas // 2
