"""Random forms of answers, made to find those at which native code crashes.

Huge and tiny numbers, bounds that nothing fits, deep nesting, references in circles, odd Unicode.
"""

from __future__ import annotations

import json
import random
from typing import Any, Final

_BEYOND = "\ue000beyond\ue000"  # becomes a number that no float holds
_NUMBERS: Final = (
    *(0, 1, -1, 2, 7, 255, 10**6 + 3, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, 2**63, -(2**63)),
    *(-(2**63) - 1, -(2**63) + 512, 2**64 - 1, 10**20, 10**40, -(10**308), 10**400),
    1234567890123456789,
    *(0.1, -0.0, 0.5, 1e-7, 5e-324, 1.7976931348623157e308, 3.4028235e38, -9.223372036854776e18),
)  # fmt: skip
_SIZES: Final = (
    0,
    1,
    2,
    3,
    10,
    255,
    1000,
    10**5,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64,
    -1,
    2.0,
    1e9,
)
_TEXTS: Final = (
    *("", "a", "name", "ß", "ﬁ", "e\u0301", "日本語", "😀" * 3, "\u202eabc", "\x00", "\x7f"),
    *("\ud800", "a\udfff", "\uffff", "\U0010ffff", "🏳️‍🌈", "a/b~c%d", "$ref", "a" * 500),
    *("__proto__", "\ufeff", '"', "\\", "\n\t", "<|im_end|>", "{}", "\u2028", "\u0130i"),
)  # fmt: skip
_PATTERNS: Final = (
    *(".*", "^a+$", "(a|b)*c", "[^\\x00-\\x7f]+", "\\p{L}+", "(a{0,1000}){0,1000}", "(((a*)*)*)*"),
    *("(?i)straße", "a{4294967296}", "[", "(?=a)", "\\d{1,300}", "^(a|aa)+$", ".*a.{12}b.*", "\\b"),
    *("[😀-🙏]{2}", "(?s).{1000}", "\\x{110000}", "(?:)", "^$", "a{3,1}"),
)  # fmt: skip
_FORMATS: Final = ("date-time", "email", "uuid", "ipv6", "uri", "hostname", "duration", "other")
_TYPES: Final = ("string", "number", "integer", "boolean", "null", "array", "object")
_REFERENCES: Final = (
    "#",
    "#/$defs/a",
    "#/$defs/a%20b",
    "#/nowhere",
    "#/properties/a",
    "http://a/b",
)
_NUMBER_KEYS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZE_KEYS: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties")
_MAX_NESTED: Final = 3_000  # levels of the deepest forms
_DEPTH: Final = 4  # levels of the others


class Forms:
    """A sequence of random forms, as keys of a request's body; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def form(self) -> str:
        """Return the next form: a key of a body and its value, in JSON."""
        rng = self._rng
        kind = rng.randrange(20)
        if kind == 0:
            return _member("guided_regex", "".join(rng.choices(_PATTERNS, k=rng.randint(1, 4))))
        if kind == 1:
            return _member("guided_choice", rng.choices(_TEXTS, k=rng.randint(1, 20)))
        text = json.dumps(self._schema(1 if kind == 2 else _DEPTH))
        if kind == 2:
            text = self._nested(text)
        text = text.replace(json.dumps(_BEYOND), rng.choice(("1e400", "-1e999")))
        carrier = rng.randrange(10)
        if carrier < 2:
            return _member("guided_grammar", f"start: %json {text}")
        if carrier < 4:
            kind_of = f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {text}}}}}'
            return f'"response_format": {kind_of}'
        return _member("guided_json", text)

    def _schema(self, depth: int) -> Any:
        """Return a schema with a few random keys, also such as do not belong together."""
        rng, schema = self._rng, dict[str, Any]()
        if rng.random() < 0.05:
            return rng.random() < 0.9
        if rng.random() < 0.6:
            schema["type"] = rng.choice(_TYPES)
        for _ in range(rng.randint(1, 3)):
            schema |= self._keys(depth)
        return schema

    def _keys(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        match rng.randrange(14 if depth else 7):
            case 0 | 1:
                return {rng.choice(_NUMBER_KEYS): self._number()}
            case 2:
                return {"const": self._value(2)}
            case 3:
                return {"enum": [self._value(2) for _ in range(rng.randint(1, 5))]}
            case 4:
                return {rng.choice(_SIZE_KEYS): rng.choice(_SIZES)}
            case 5:
                return {"pattern": rng.choice(_PATTERNS)}
            case 6:
                return {"format": rng.choice(_FORMATS)}
            case 7:
                return {"$ref": rng.choice(_REFERENCES), "$defs": {"a": self._schema(depth - 1)}}
            case 8 | 9:
                names = rng.choices(_TEXTS, k=rng.randint(1, 4))
                return {
                    "properties": {name: self._schema(depth - 1) for name in names},
                    "required": rng.choices(_TEXTS, k=rng.randint(0, 3)),
                }
            case 10:
                key = rng.choice(("items", "additionalProperties", "propertyNames", "not"))
                return {key: self._schema(depth - 1)}
            case 11:
                return {"patternProperties": {rng.choice(_PATTERNS): self._schema(depth - 1)}}
            case 12:
                return {"uniqueItems": True, "prefixItems": [self._schema(depth - 1)]}
            case _:
                key = rng.choice(("allOf", "anyOf", "oneOf"))
                return {key: [self._schema(depth - 1) for _ in range(rng.randint(0, 4))]}

    def _nested(self, text: str) -> str:
        """Return a schema around another: as text, since Python cannot write what is so deep."""
        rng = self._rng
        key = rng.choice(("items", "not", "additionalProperties", "anyOf"))
        opened, closed = ("[", "]") if key == "anyOf" else ("", "")
        depth = rng.randint(5, rng.choice((20, 300, _MAX_NESTED)))
        return f'{{"{key}": {opened}' * depth + text + f"{closed}}}" * depth

    def _number(self) -> Any:
        rng = self._rng
        if rng.random() < 0.5:
            return rng.choice((*_NUMBERS, _BEYOND))
        number = rng.randint(0, 2 ** rng.randint(1, 70)) * rng.choice((1, -1))
        return number if rng.random() < 0.6 else number * 10.0 ** rng.randint(-40, 40)

    def _value(self, depth: int) -> Any:
        rng = self._rng
        match rng.randrange(6 if depth else 4):
            case 0 | 1:
                return self._number()
            case 2:
                return rng.choice(_TEXTS)
            case 3:
                return rng.choice((None, True, False))
            case 4:
                return [self._value(depth - 1) for _ in range(rng.randint(0, 3))]
            case _:
                return {rng.choice(_TEXTS): self._value(depth - 1)}


def _member(key: str, value: Any) -> str:
    return f"{json.dumps(key)}: {json.dumps(value)}"
