"""The bytes of a vocabulary's tokens, decoded from their written form."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_HEX_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # SentencePiece's notation for a byte
_SPACE = "\u2581"  # SentencePiece's notation for a space


def byte_of(token: str) -> bytes | None:
    """Return the byte named by a SentencePiece token such as <0x0A>; None for other tokens."""
    found = _HEX_BYTE.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else None


def bytes_of_letters(token: str) -> bytes | None:
    """Return the bytes of a byte-level vocabulary's token; None if it is not in that notation."""
    try:
        return bytes(map(_BYTES.__getitem__, token))
    except KeyError:
        return None


def reader_of(decoder: Any) -> Callable[[str], bytes] | None:
    """Return a function that reads the bytes of tokens, given the `decoder` of a tokenizer.json.

    None for a decoder with its own rules for joining tokens.
    """
    kinds = _kinds(decoder)
    if "ByteLevel" in kinds:
        return _read_letters
    writes_spaces = "Metaspace" in kinds or _SPACE in str(decoder)
    return _read_pieces if writes_spaces or "ByteFallback" in kinds else None


def _kinds(decoder: Any) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    return {str(decoder.get("type"))}.union(*map(_kinds, decoder.get("decoders", ())))


def _read_letters(token: str) -> bytes:
    found = bytes_of_letters(token)
    return token.encode() if found is None else found


def _read_pieces(token: str) -> bytes:
    found = byte_of(token)
    return token.replace(_SPACE, " ").encode() if found is None else found


def _byte_letters() -> dict[str, int]:
    """Return the byte for each letter of a byte-level vocabulary.

    Printable Latin-1 bytes are their own letters; the others have letters from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_letters()
