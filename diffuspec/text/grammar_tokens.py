"""A tokenizer as grammars need it: each token stands for its text in answers.

llguidance itself, when it reads a tokenizer.json, keeps every added token of the form <...> out of
texts, and encodes forced text like a prompt, normalised and with special tokens. Here a token that
is not special is ordinary text, and no text is ever encoded as a special token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from diffuspec.text.token_bytes import reader_of

_SPECIAL = b"\xff"  # a byte that never occurs in a text
# A text, a regular expression, a comment, or the name of a token.
_LARK = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|(?://|#)[^\n]*|<([^\s<>\[\]][^\s<>]*)>'
)
# turned off, so that a text keeps its spaces
_STRIPS = ("lstrip", "rstrip", "normalized", "single_word")


class GrammarTokens:
    """The tokens of one tokenizer, with the interface of `llguidance.TokenizerWrapper`."""

    bos_token_id = None

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        """Raise ValueError for a tokenizer whose tokens are not the bytes of a text."""
        data = json.loads(tokenizer.to_str())
        read = reader_of(data["decoder"])
        if read is None:
            raise ValueError("its decoder is neither of bytes nor of SentencePiece's kind")
        added = {token["id"]: token for token in data["added_tokens"]}
        ends = set(eos_token_ids)
        special = {i for i, token in added.items() if token["special"]} | ends
        special = {token_id for token_id in special if token_id < vocab_size}
        self.special_token_ids = sorted(special)
        self.eos_token_id = next(iter(eos_token_ids), 0)
        self.ids_by_name: Mapping[str, int] = {t["content"]: i for i, t in added.items()}
        self.tokens = [b""] * vocab_size
        for token, token_id in tokenizer.get_vocab().items():
            if token_id < vocab_size:
                self.tokens[token_id] = token.encode() if token_id in special else read(token)
        self._marked = dict(enumerate(self.tokens)) | {token_id: _SPECIAL for token_id in special}
        self._tokenizer, self._ids = _plain(data, special)

    def __call__(self, text: bytes | str) -> list[int]:
        """Return the ids of a text, like a prompt's if they have its bytes, else the longest."""
        raw = text.encode() if isinstance(text, str) else text
        found = self._tokenizer.encode(raw.decode(), add_special_tokens=False).ids
        ids = [self._ids.get(one, one) for one in found]
        kept = b"".join(self._marked.get(token_id, _SPECIAL) for token_id in ids)
        return ids if kept == raw else self._longest(raw)

    def name_by_id(self, grammar: str) -> str:
        """Return a Lark grammar in which tokens in angle brackets are named by their ids."""

        def name(found: re.Match[str]) -> str:
            token_id = self.ids_by_name.get(found[0]) if found[1] else None
            return found[0] if token_id is None else f"<[{token_id}]>"

        return _LARK.sub(name, grammar)

    def _longest(self, raw: bytes) -> list[int]:
        ids: list[int] = []
        while raw:
            sizes = range(min(len(raw), self._max_bytes), 0, -1)
            size = next((size for size in sizes if raw[:size] in self._ids_by_bytes), None)
            if size is None:  # a byte for which the tokenizer has no token
                break
            ids.append(self._ids_by_bytes[raw[:size]])
            raw = raw[size:]
        return ids

    @cached_property
    def _ids_by_bytes(self) -> dict[bytes, int]:
        special = {*self.special_token_ids}
        return {raw: i for i, raw in enumerate(self.tokens) if raw and i not in special}

    @cached_property
    def _max_bytes(self) -> int:
        return max(map(len, self._ids_by_bytes), default=0)


def _plain(data: dict[str, Any], special: Collection[int]) -> tuple[Tokenizer, dict[int, int]]:
    """Return a tokenizer that preserves texts, and the true ids of its added tokens.

    It has no special tokens, which changes the ids of tokens after them.
    """
    kept = [token for token in data["added_tokens"] if token["id"] not in special]
    plain = {
        **data,
        "added_tokens": [token | dict.fromkeys(_STRIPS, False) for token in kept],
        "normalizer": _inverted_only(data["normalizer"]),
        "pre_tokenizer": _without_prefix(data["pre_tokenizer"]),
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    tokenizer = Tokenizer.from_str(json.dumps(plain))
    ids = {token["content"]: token["id"] for token in kept}
    found = tokenizer.get_added_tokens_decoder().items()
    return tokenizer, {new_id: ids[token.content] for new_id, token in found}


def _inverted_only(normalizer: Any) -> Any:
    """Return a normalizer without the steps that a decoder does not undo."""
    if not isinstance(normalizer, dict):
        return None
    if normalizer["type"] == "Sequence":
        parts = [part for one in normalizer["normalizers"] if (part := _inverted_only(one))]
        return {"type": "Sequence", "normalizers": parts}
    return normalizer if normalizer["type"] == "Replace" else None


def _without_prefix(value: Any) -> Any:
    """Return a pre-tokenizer that adds no space before a text."""
    if isinstance(value, list):
        return [_without_prefix(one) for one in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _without_prefix(one) for key, one in value.items()}
    if "add_prefix_space" in changed:
        changed["add_prefix_space"] = False
    if "prepend_scheme" in changed:
        changed["prepend_scheme"] = "never"
    return changed
