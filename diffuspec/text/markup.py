"""Texts of users and tools kept apart from the tokens with which a chat template marks turns.

A text such as <|im_end|> in a message would become the token that ends a turn, so that a document
could speak as the system. Where a text names such a token, a placeholder goes through the template
instead, and the text itself is encoded by a tokenizer that knows the template's tokens by other
names. All other ids are those of the original tokenizer. (`sanitize_control_tokens` of transformers
encodes such texts in pieces, leaves out the names of keys and texts that a template joins, and
treats system prompts and answers alike.)
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.token_ids import read_only
from diffuspec.core.types import TokenIds
from diffuspec.text.chat_template import sample_chat, template_text
from diffuspec.text.encoding import encode_text

# Roles whose contents the application or the model wrote.
_TRUSTED = frozenset({"system", "developer", "assistant"})


@dataclass(frozen=True, slots=True)
class HiddenTexts:
    """Messages and tools with placeholders for the texts that name tokens of the template."""

    messages: list[dict[str, Any]]
    tools: list[Any]
    texts: tuple[str, ...]  # index: number of the placeholder


@dataclass(frozen=True, slots=True)
class _Span:
    begin: int
    end: int
    name: str  # the token


class Markup:
    """The tokens of a chat template's markup: special ones, and added ones that it writes."""

    def __init__(self, tokenizer: Any) -> None:
        backend: Tokenizer = tokenizer.backend_tokenizer
        declared = (
            getattr(tokenizer, "chat_control_tokens", None) or ()
        )  # from tokenizer_config.json
        written = "\0".join([template_text(tokenizer), sample_chat(tokenizer), *declared])
        added = sorted(backend.get_added_tokens_decoder().items())
        names = [token.content for _, token in added if _is_markup(token, written)]
        # No client can guess these words, so no text contains them.
        self._head = f"Q{secrets.token_hex(8)}"
        self._placeholder = re.compile(self._head + r"h(\d+)Z")
        self._aliases = {name: f"{self._head}m{i}Z" for i, name in enumerate(names)}
        self._scanner = self._scanner_of(backend, [token for _, token in added])
        self._renamed = self._renamed_copy(backend, [token for _, token in added])
        self._ids = np.arange(self._renamed.get_vocab_size(), dtype=np.int32)
        for token_id, token in added:
            alias = self._aliases.get(token.content, token.content)
            self._ids[self._renamed.token_to_id(alias)] = token_id
        self._markup_ids = [i for i, token in added if token.content in self._aliases]

    def hide(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> HiddenTexts:
        """Put placeholders where texts of users and tools name a token of the template.

        Texts are searched as if they were written one after the other, since a template may join
        them. Messages of the roles in `_TRUSTED` keep their contents, but not their calls.
        """
        given: list[str] = []

        def note(text: str) -> str:
            given.append(text)
            return text

        _changed(messages, tools, note)
        spans = self._spans("".join(given))
        if not spans:
            return HiddenTexts([dict(message) for message in messages], [*tools], ())
        hidden: list[str] = []
        replaced = iter([*self._replaced(given, spans, hidden)])
        return HiddenTexts(*_changed(messages, tools, lambda _: next(replaced)), tuple(hidden))

    def restore(self, rendered: str, texts: Sequence[str]) -> str:
        """Return a rendered chat with its hidden texts, for `encode`.

        Raises InvalidRequestError if the template has changed a placeholder; it may drop them.
        """
        num_whole = sum(1 for _ in self._placeholder.finditer(rendered))
        beginning = self._head[
            :9
        ].casefold()  # the least that a template leaves of a cut placeholder
        if rendered.casefold().count(beginning) != num_whole:
            raise InvalidRequestError(
                f"a text contains {texts[0]!r}, a token of the chat template, where the template "
                "changes texts: such a text can only be sent without it"
            )
        parts, end = [], 0
        for span in self._spans(rendered):
            parts += [rendered[end : span.begin], self._aliases[span.name]]
            end = span.end
        named = "".join([*parts, rendered[end:]])
        return self._placeholder.sub(lambda match: texts[int(match[1])], named)

    def encode(self, restored: str, adds_special_tokens: bool) -> TokenIds:
        """Return the ids of a restored chat. Raises InvalidRequestError."""
        encoding = encode_text(self._renamed, restored, adds_special_tokens)
        ids = read_only(np.array(encoding.ids, np.int32))
        is_of_chat = (
            np.array(encoding.special_tokens_mask) == 0
        )  # without a BOS that the tokenizer adds
        if np.isin(ids[is_of_chat], self._markup_ids).any():
            raise InvalidRequestError(
                "a text contains a token of the chat template that this tokenizer cannot encode as "
                "plain text: such a text can only be sent without it"
            )
        return self._ids[ids]

    def _spans(self, text: str) -> list[_Span]:
        """Return the places of the template's tokens in a text, as the tokenizer finds them."""
        encoding = encode_text(self._scanner, text, False)
        return [
            _Span(begin, end, name)
            for name, (begin, end) in zip(encoding.tokens, encoding.offsets, strict=True)
            if name in self._aliases
        ]

    def _replaced(
        self, given: Sequence[str], spans: Sequence[_Span], hidden: list[str]
    ) -> Iterator[str]:
        """Yield the given texts with placeholders at the spans, which count over all of them."""
        begin, rest = 0, 0
        for text in given:
            end, place, parts = begin + len(text), begin, []
            while rest < len(spans) and spans[rest].begin < end:
                first, last = max(spans[rest].begin, begin), min(spans[rest].end, end)
                if first < last:
                    parts.append(text[place - begin : first - begin])
                    parts.append(f"{self._head}h{len(hidden)}Z")
                    hidden.append(text[first - begin : last - begin])
                    place = last
                if spans[rest].end > end:  # the rest of the token is in the next text
                    break
                rest += 1
            yield "".join([*parts, text[place - begin :]])
            begin = end

    def _scanner_of(self, backend: Tokenizer, added: Sequence[AddedToken]) -> Tokenizer:
        """Return a tokenizer that finds the template's tokens, in linear time."""
        rest = "rest"
        scanner = Tokenizer(models.WordLevel({rest: 0}, unk_token=rest))
        scanner.normalizer = backend.normalizer
        kept = [token for token in added if token.content in self._aliases]
        scanner.add_tokens(
            [
                AddedToken(token.content, normalized=token.normalized, special=False)
                for token in kept
            ]
        )
        return scanner

    def _renamed_copy(self, backend: Tokenizer, added: Sequence[AddedToken]) -> Tokenizer:
        """Return a tokenizer over the same model in which the template's tokens have aliases."""
        renamed = Tokenizer(backend.model)  # shares the vocabulary
        renamed.normalizer = backend.normalizer
        renamed.pre_tokenizer = backend.pre_tokenizer
        renamed.post_processor = backend.post_processor
        # The aliases' ids come after all ids, so that an id of markup can only come from a text.
        highest = max(backend.get_vocab().values())
        num_fillers = max(highest + 1 - renamed.get_vocab_size(), 0)
        renamed.add_tokens([f"{self._head}f{i}Z" for i in range(num_fillers)])
        renamed.add_tokens([self._alias(token) for token in added])
        return renamed

    def _alias(self, token: AddedToken) -> AddedToken:
        alias = self._aliases.get(token.content)
        return AddedToken(
            alias or token.content,
            single_word=token.single_word and alias is None,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized,
            special=token.special,
        )


def markup_of(tokenizer: Any) -> Markup:
    """Return the markup of a tokenizer's current chat template."""
    return _markup_of(tokenizer, template_text(tokenizer))


@functools.lru_cache(maxsize=8)
def _markup_of(tokenizer: Any, _template: str) -> Markup:
    return Markup(tokenizer)


def _is_markup(token: AddedToken, written: str) -> bool:
    """Return whether a template uses an added token; spaces are text."""
    return bool(token.content.strip()) and (token.special or token.content in written)


def _changed(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], change: Callable[[str], str]
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Apply a function to all texts of users and tools, in one order."""
    changed = []
    for message in messages:
        keys = {"tool_calls"} if message["role"] in _TRUSTED else message.keys() - {"role"}
        changed.append(
            {
                key: _with_texts(value, change, key == "content") if key in keys else value
                for key, value in message.items()
            }
        )
    return changed, [_with_texts(tool, change) for tool in tools]


def _with_texts(value: Any, change: Callable[[str], str], is_content: bool = False) -> Any:
    """Apply a function to all texts in a value of JSON, to the names of an object's keys, too.

    Of content, only to the texts of its parts, which a template may join.
    """
    if isinstance(value, str):
        return change(value)
    if is_content:
        return [{**part, "text": change(part["text"])} for part in value]
    if isinstance(value, Mapping):
        return {
            change(key) if isinstance(key, str) else key: _with_texts(item, change)
            for key, item in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_with_texts(item, change) for item in value]
    return value
