"""Why a form cannot be compiled or went out of bounds, in words that quote nothing of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

_Say: TypeAlias = Callable[[re.Match[str]], str]

_REGEX: Final = "the regular expression is wrong"
# llguidance's and the regular expressions' own words, and what they mean.
_MEANINGS: Final[tuple[tuple[str, _Say], ...]] = (
    (r"regex parse error:.*\nerror: ([^\n]+)", lambda m: f"{_REGEX}: {m[1]}"),
    (r"unknown name|Rule '.*' not found", lambda _: "the grammar uses a rule that it has not"),
    (r"no start rule", lambda _: "the grammar has no rule `start`"),
    (r"unknown special token", lambda _: "the grammar names a token that the model has not"),
    (r"Unknown common regex", lambda _: "the grammar imports what there is not"),
    (r"nested|recursion", lambda _: "it is nested too deeply"),
    (r"too (?:big|large|complex|many)|fuel|limit|TooComplex|states", lambda _: "it is too complex"),
    (r"oneOf", lambda _: "alternatives of oneOf must exclude each other plainly; use anyOf"),
    (r"does not fetch|Pointer|remote", lambda _: "a $ref leads out of the schema, or nowhere"),
    (r"Unsatisfiable", lambda _: "no value fits the schema"),
    (r"Expected .* for '|must be an? ", lambda _: "a key of the schema has a wrong value"),
    (r"^(?:at )?(\d+)\(\d+\):", lambda m: f"line {m[1]} of the grammar cannot be read"),
    (r"(?:at|in) line (\d+)", lambda m: f"line {m[1]} of the grammar cannot be read"),
    (r"Bias|NoExtension|^$", lambda _: "no text has this form"),
)
_OTHER: Final = "it has what is not supported"


def meaning_of(reason: str) -> str:
    """Return in our own words what llguidance's reason says."""
    reason = reason.split("<state>", 1)[0].split("<non-verbose", 1)[0].strip()
    for pattern, say in _MEANINGS:
        if found := re.search(pattern, reason, re.DOTALL):
            return say(found)
    return _OTHER
