"""Formats of structured output, compiled by llguidance to grammars over the target's tokens.

A short format may describe an enormous grammar. `_LIMITS` limits the cost of compiling it and of
computing each mask; exceeding them is an error.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from json import JSONDecodeError
from pathlib import Path
from typing import Final, Self, TypeAlias, cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax
from tokenizers import Tokenizer

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import StructuredOutput
from diffuspec.text.grammar_tokens import GrammarTokens
from diffuspec.text.grammar_trial import survives_trial
from diffuspec.text.schemas.in_lark import owner_of_line, with_usable_schemas
from diffuspec.text.schemas.parts import patterns_in, places_of
from diffuspec.text.schemas.references import circle_in
from diffuspec.text.schemas.rewriting import usable_schema

UNUSABLE: Final = "structured_output cannot be used"

_MAX_COMPILED = 16  # number of formats kept; each may take about 20 MB of lexer states
# JSON allows any amount of white space; without a limit, some models fill an answer with it.
_BOUNDED_SPACE = {"whitespace_pattern": r"[ ]?|\r?\n[ \t]{0,32}"}
_MAX_PLACE = 200  # characters of a path in a schema
_MAX_TRIED = 32  # forced tokens tried when a format is compiled

# A third to a tenth of llguidance's defaults: half a second to compile, 10 ms per mask.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    step_max_items=10_000,
    max_lexer_states=20_000,
    max_grammar_size=50_000,
    verbose_errors=False,  # errors are logged, and logs must not contain users' text
)

# Where an error of llguidance is in a Lark grammar.
_LINE: Final = re.compile(r"(?:at )?(\d+)\(\d+\): (?:failed to compile JSON schema: )?")

_Say: TypeAlias = Callable[[re.Match[str]], str]

_REGEX: Final = "the regular expression is wrong"
# Phrases of llguidance and its regular expressions, and what they mean.
_MEANINGS: Final[tuple[tuple[str, _Say], ...]] = (
    (r"regex parse error:.*\nerror: ([^\n]+)", lambda m: f"{_REGEX}: {m[1]}"),
    (r"unknown name|Rule '.*' not found", lambda _: "the grammar uses a rule that it has not"),
    (r"no start rule", lambda _: "the grammar has no rule `start`"),
    (r"unknown special token", lambda _: "the grammar names a token that the model has not"),
    (r"Unknown common regex", lambda _: "the grammar imports what there is not"),
    (r"nested|recursion", lambda _: "it is nested too deeply"),
    (
        r"too (?:big|large|complex|many)|fuel|limit|TooComplex|states|Unable to determine",
        lambda _: "it is too complex",
    ),
    (
        r"circular|stack level",
        lambda _: "a schema that contains itself must not be joined with other keys",
    ),
    (r"not disjoint", lambda _: "patterns of patternProperties must not match the same name"),
    (r"does not fetch|Pointer|remote", lambda _: "a $ref leads out of the schema, or nowhere"),
    (r"Unsatisfiable", lambda _: "no value fits the schema"),
    (r"Expected .* for '|must be an? ", lambda _: "a key of the schema has a wrong value"),
    (r"^(?:at )?(\d+)\(\d+\):", lambda m: f"line {m[1]} of the grammar cannot be read"),
    (r"(?:at|in) line (\d+)", lambda m: f"line {m[1]} of the grammar cannot be read"),
    (r"Bias|NoExtension|^$", lambda _: "no text has this form"),
)
_OTHER: Final = "it has what is not supported"


class Grammars:
    """Compiles structured-output formats for one target. Thread-safe."""

    def __init__(self, read_tokenizer: Callable[[], Tokenizer], info: TargetInfo) -> None:
        """read_tokenizer: called with the first format. It may raise ModelLoadError."""
        self._read_tokenizer = read_tokenizer
        self._info = info
        self._compiled: OrderedDict[StructuredOutput, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, path: Path, info: TargetInfo) -> Self:
        """Return new grammars of the target in a directory."""

        def read_tokenizer() -> Tokenizer:
            # This imports transformers, which only structured output needs.
            from diffuspec.text.tokenizer import load_tokenizer

            backend: Tokenizer = load_tokenizer(path).backend_tokenizer
            return backend

        return cls(read_tokenizer, info)

    @property
    def info(self) -> TargetInfo:
        return self._info

    def prepare(self) -> None:
        """Read the tokenizer before the first format: that takes seconds for a large vocabulary.

        If it cannot be used, `compile` raises the error.
        """
        with contextlib.suppress(InvalidRequestError):
            _ = self._tokenizer

    def is_compiled(self, form: StructuredOutput) -> bool:
        """Return whether `compile` would return at once."""
        return form in self._compiled

    def admit(self, form: StructuredOutput) -> None:
        """Compile and try a format; keep nothing of it.

        Raises InvalidRequestError if it cannot be compiled, or if masks of random answers exceed
        its limits. Native code may also crash, or take any amount of time and memory.
        """
        if not survives_trial(self._compiled_now(form), self._info.eos_token_ids):
            raise InvalidRequestError(f"{UNUSABLE}: it is too complex to hold an answer to")

    def compile(self, form: StructuredOutput, afresh: bool = False) -> LLMatcher:
        """Return a new matcher at the beginning of an answer.

        The matchers of a format share lexer states, which count towards its limits: after one has
        failed, others may fail too. A matcher compiled afresh shares none with earlier ones. Raises
        InvalidRequestError for a format that is malformed, empty or too complex, and ModelLoadError
        without a tokenizer.
        """
        with self._lock:
            matcher = self._compiled.get(form)
            if matcher is not None and not afresh:
                self._compiled.move_to_end(form)
                return matcher.deep_copy()
        matcher = self._compiled_now(form)
        with self._lock:
            self._compiled[form] = matcher
            self._compiled.move_to_end(form)
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
            return matcher.deep_copy()

    def _compiled_now(self, form: StructuredOutput) -> LLMatcher:
        tokens, tokenizer = self._tokenizer
        matcher = LLMatcher(tokenizer, _grammar(form, tokens), log_level=0, limits=_LIMITS)
        # llguidance defers work until the first mask is computed.
        if matcher.is_error() or not any(matcher.compute_bitmask()) or matcher.is_error():
            raise InvalidRequestError(_why_refused(form, matcher))
        if not _can_begin(matcher):
            raise InvalidRequestError(
                f"{UNUSABLE}: the target's tokenizer has no tokens for how each of its texts begins"
            )
        return matcher

    @functools.cached_property
    def _tokenizer(self) -> tuple[GrammarTokens, LLTokenizer]:
        info, backend = self._info, self._read_tokenizer()
        try:
            tokens = GrammarTokens(backend, info.vocab_size, info.eos_token_ids)
            return tokens, LLTokenizer(TokenizerWrapper(tokens), eos_token=[*info.eos_token_ids])
        except ValueError as error:
            raise InvalidRequestError(f"{UNUSABLE} with the target's tokenizer: {error}") from error


@functools.lru_cache(maxsize=4)
def grammars_of(path: Path, info: TargetInfo) -> Grammars:
    """Return the grammars of a target, which all its roles in one process share."""
    return Grammars.of(path, info)


def _can_begin(matcher: LLMatcher) -> bool:
    """Return whether the tokens that a format forces at its beginning lead to more of it."""
    ahead = matcher.deep_copy()
    for _ in range(_MAX_TRIED):
        forced = ahead.compute_ff_tokens()[:1]
        if not forced:
            break
        if ahead.try_consume_tokens(forced) != 1:
            return ahead.is_stopped()
    return any(ahead.compute_bitmask()) or ahead.is_stopped()


def describe_failure(matcher: LLMatcher) -> str:
    """Describe in one line why a matcher has no next token, without quoting its grammar."""
    return meaning_of(matcher.get_error())


def json_schema_of(form: StructuredOutput) -> str | None:
    """Return the JSON Schema of a format, with limited white space.

    None for a format that is not JSON. Raises InvalidRequestError.
    """
    if form.json_object:
        schema: object = {"type": "object"}
    elif form.json_schema is not None:
        schema = _read_schema(form.json_schema)
    else:
        return None
    return json.dumps(
        {**schema, "x-guidance": _BOUNDED_SPACE} if isinstance(schema, dict) else schema
    )


def _grammar(form: StructuredOutput, tokens: GrammarTokens) -> str:
    if (schema := json_schema_of(form)) is not None:
        return LLMatcher.grammar_from_json_schema(schema)
    if form.regex is not None:
        return LLMatcher.grammar_from_regex(form.regex)
    if form.choice:
        texts = (json.dumps(text, ensure_ascii=False) for text in form.choice)
        return LLMatcher.grammar_from_lark(f"start: {' | '.join(texts)}")
    assert form.grammar is not None
    lark = with_usable_schemas(in_lark(form.grammar))
    return LLMatcher.grammar_from_lark(tokens.name_by_id(lark))


# A text, a regular expression or a comment, or the name of an attribute.
_UNOBEYED = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|(?://|#)[^\n]*'
    r"|\b(?P<name>max_tokens|temperature)\s*=(?!=)"
)


def in_lark(grammar: str) -> str:
    """Return a grammar in Lark's syntax, converted from the GBNF of xgrammar and llama.cpp.

    Raises InvalidRequestError for other syntax, and for attributes that nothing here obeys.
    """
    for part in _UNOBEYED.finditer(grammar):
        if (name := part["name"]) is not None:
            raise InvalidRequestError(
                f"{UNUSABLE}: the attribute {name} of a rule is not supported; the request's own "
                f"{name} is"
            )
    if is_lark_syntax(grammar) or "::=" not in grammar:
        return grammar
    try:
        return gbnf_to_lark(grammar)
    except Exception as error:  # the converter raises nothing narrower for a missing rule
        reason = meaning_of(str(error))
        raise InvalidRequestError(f"{UNUSABLE}: {reason}") from None


def _read_schema(text: str) -> object:
    try:
        schema = json.loads(text)
    except ValueError as error:
        where = f"{error.msg}: line {error.lineno}" if isinstance(error, JSONDecodeError) else ""
        raise InvalidRequestError(f"json_schema must be JSON: {where}") from error
    except RecursionError:
        raise InvalidRequestError("json_schema is nested too deeply") from None
    if not isinstance(schema, dict | bool):
        raise InvalidRequestError(
            f"json_schema cannot be used: a JSON Schema is an object, got {type(schema).__name__}"
        )
    try:
        return cast(object, usable_schema(schema))
    except RecursionError:
        raise InvalidRequestError("json_schema is nested too deeply") from None


def _why_refused(form: StructuredOutput, matcher: LLMatcher) -> str:
    """Return what cannot be used and why, with the place in a schema if it is known."""
    reason = matcher.get_error()
    if form.grammar is not None:
        if line := _LINE.match(reason):
            owner = owner_of_line(in_lark(form.grammar), int(line[1]))
            if owner is not None:
                return f"{owner} cannot be used: {meaning_of(reason[line.end() :])}"
        return f"{UNUSABLE}: {meaning_of(reason)}"
    schema = json.loads(form.json_schema) if form.json_schema is not None else None
    for place, pattern in patterns_in(schema):
        if error := LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern)):
            return f"{UNUSABLE}: {place[:_MAX_PLACE]}: {meaning_of(error)}"
    at = None
    if "not disjoint" in reason:
        at = next(places_of(schema, ("patternProperties",)), None)
    elif "circular" in reason or "stack level" in reason:
        at = circle_in(schema)
    return f"{UNUSABLE}: {f'{at[:_MAX_PLACE]}: ' if at else ''}{meaning_of(reason)}"


def meaning_of(reason: str) -> str:
    """Return llguidance's reason in our own words."""
    reason = reason.split("<state>", 1)[0].split("<non-verbose", 1)[0].strip()
    for pattern, say in _MEANINGS:
        if found := re.search(pattern, reason, re.DOTALL):
            return say(found)
    return _OTHER
