"""The texts of single tokens, which may be parts of a character."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_HEX_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # SentencePiece's way to write a byte


class TokenTexts:
    """Tokens of one tokenizer as bytes. Special tokens are their names."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of several tokens together, special ones included."""
        decoded: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return decoded

    def token(self, token_id: int) -> str:
        """Return the text of one token; parts of a character are U+FFFD."""
        return self.raw(token_id).decode(errors="replace")

    def raw(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for. They need not be a whole character."""
        text = self.text([token_id])
        if "\ufffd" not in text:
            return text.encode()
        token: str = self._tokenizer.convert_ids_to_tokens(token_id)
        if found := _HEX_BYTE.fullmatch(token):
            return bytes([int(found[1], 16)])
        if all(letter in _BYTES for letter in token):
            return bytes(_BYTES[letter] for letter in token)
        return text.encode()


def _byte_letters() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Printable bytes of Latin-1 stand for themselves, the others for letters from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_letters()
