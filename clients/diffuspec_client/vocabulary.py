"""The vocabulary of an engine's tokenizer, in the form that the draft service compares."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping


class Vocabulary:
    """The tokens of an engine, by id."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """`tokens`: ids by token, as a tokenizer's `get_vocab` returns them."""
        self.size = max(tokens.values(), default=-1) + 1
        self.tokens = [b""] * self.size
        for token, token_id in tokens.items():
            self.tokens[token_id] = token.encode("utf-8", "backslashreplace")

    def digest(self) -> bytes:
        """Return the vocabulary's digest, as described in draft_service.proto."""
        found = hashlib.blake2b(digest_size=32)
        for token_id, token in enumerate(self.tokens):
            if token:
                found.update(struct.pack("<II", token_id, len(token)) + token)
        return found.digest()
