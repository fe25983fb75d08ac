"""Ranges of numbers in JSON Schemas: every number within is allowed, and no other."""

from __future__ import annotations

import json
import random
from decimal import Decimal

import pytest

from diffuspec.core.params import StructuredOutput
from diffuspec.text.schemas.numbers import LEAST_WHOLE, MOST
from diffuspec.text.schemas.ranges import KEYS, alternatives
from diffuspec.text.schemas.refusal import RefusedSchemaError
from tests.support.tiny_target import takes

FLOAT32 = 3.4028234663852886e38
BIG = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}


def allowed(schema, texts):
    form = StructuredOutput(json_schema=json.dumps(schema))
    return [text for text in texts if takes(form, text)]


@pytest.mark.parametrize(
    ("limits", "right", "wrong"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, "0.5 0.01 0.49", "0 0.0 0.6 -0.1"),
        ({"exclusiveMinimum": 1, "maximum": 1.5}, "1.5 1.01", "1 1.0 1.51"),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, "-0.5 -0.1", "-0 0 -0.51"),
        ({"minimum": 0.05, "maximum": 0.95}, "0.05 0.9 0.95 0.5", "0 0.04 0.96 1"),
        ({"minimum": -1.25, "maximum": 1.25}, "-1.2 -1.25 0 1.2 1.25", "-1.3 1.26 1.3"),
        ({"minimum": 0, "maximum": 1}, "0 0.5 1", "-0.1 1.1"),
        ({"minimum": 0.25, "multipleOf": 0.25}, "0.25 0.5 1 1.5 2.75", "0 0.3 0.1"),
        ({"minimum": 0, "maximum": 0.3, "multipleOf": 0.1}, "0 0.1 0.2 0.3", "0.15 0.4"),
        ({"minimum": -FLOAT32, "maximum": FLOAT32}, "0 -5.5 9000000000000000000", "x"),
        ({"maximum": 1e20}, "5 -5 9000000000000000000.5", "100000000000000000001"),
        ({"minimum": 1e18}, "1000000000000000000 1000000000000000000.5", "1 999999999999999999"),
    ],
)
def test_ranges_of_numbers_are_obeyed(limits, right, wrong):
    schema = {"type": "number", **limits}
    assert allowed(schema, right.split()) == right.split() and not allowed(schema, wrong.split())


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (BIG, (0, 2**63 - 1, LEAST_WHOLE), (2**63, -(2**63) - 1)),
        (BIG | {"minimum": 0, "maximum": 2**64 - 1}, (0, 2**63 - 1), (-1, 2**64)),
        (BIG | {"minimum": 0, "maximum": 2**63}, (0, 2**63 - 1), (-1, 2**63 + 1)),
        (BIG | {"minimum": 0.5, "maximum": 3.5}, (1, 3), (0, 4)),
        (BIG | {"minimum": 5, "exclusiveMinimum": True}, (6,), (5,)),
        ({"type": "integer", "minimum": 2**62}, (2**62, 2**63 - 1), (2**62 - 1, 5)),
        ({"type": "integer", "maximum": -(2**62)}, (-(2**62), LEAST_WHOLE), (-(2**62) + 1, 5)),
        ({"type": "integer", "maximum": 1e20}, (0, 2**63 - 1, -5), (10**20 + 1,)),
        ({"type": ["integer", "string"], "minimum": 0.5}, (1, "a"), (0,)),
        ({"minimum": 0.5, "maxLength": 1}, (0.5, "a", None, [0]), (0, 0.4, "ab")),
        ({"allOf": [{"exclusiveMinimum": 0}, {"type": "number", "maximum": 0.55}]}, (0.5,), (0,)),
    ],
)
def test_ranges_of_a_schema_are_obeyed(schema, right, wrong):
    texts, others = [*map(json.dumps, right)], [*map(json.dumps, wrong)]
    assert allowed(schema, texts) == texts and not allowed(schema, others)


def number(rng):
    return rng.choice(
        [
            rng.randint(-3, 3),
            round(rng.uniform(-2, 2), rng.randint(1, 4)),
            rng.randint(-(10 ** rng.randint(1, 21)), 10 ** rng.randint(1, 21)),
            float(f"{rng.uniform(-1, 1) * 10 ** rng.randint(-3, 20):.{rng.randint(1, 15)}g}"),
        ]
    )


def written(value):
    return f"{value.normalize() + 0:f}"


@pytest.mark.parametrize("seed", range(60))
def test_random_ranges_allow_what_is_in_them(seed):
    rng = random.Random(seed)
    low, high = sorted((number(rng), number(rng)))
    chosen = {rng.choice(KEYS[0:4:2]): low, rng.choice(KEYS[1:4:2]): high}
    chosen["multipleOf"] = rng.choice([None, None, None, None, 2, 7, 0.5, 0.25, 0.1])
    limits = {key: value for key, value in chosen.items() if value and rng.random() < 0.8}
    kind = rng.choice(["number", "number", "integer"])
    try:
        parts = alternatives(limits, "#", is_whole=kind == "integer")
    except RefusedSchemaError as error:
        assert error.place[2:] in limits
        return
    near = [Decimal(str(value)) for value in (low, high, 0, number(rng))]
    places = [Decimal(1).scaleb(-places) for places in range(6)]
    values = [value.quantize(place, rounding="ROUND_DOWN") for value in near for place in places]
    values += [value + sign * place for value in near for place in places for sign in (1, -1)]
    values = [
        value for value in values if abs(value) < MOST and (kind != "integer" or not value % 1)
    ]
    texts = {written(value) for value in values if is_within(value, limits)}
    assert (
        {*allowed({"type": kind, **limits}, map(written, values))} == texts if parts else not texts
    )


def is_within(value, limits):
    exact = {key: Decimal(str(limit)) for key, limit in limits.items()}
    return (
        exact.get("minimum", value) <= value <= exact.get("maximum", value)
        and exact.get("exclusiveMinimum", value - 1)
        < value
        < exact.get("exclusiveMaximum", value + 1)
        and not value % exact.get("multipleOf", value or 1)
    )
