"""The bytes that the tokens of a vocabulary stand for, by how the vocabulary writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_HEX_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # SentencePiece's way to write a byte
_SPACE = "\u2581"  # SentencePiece's way to write a space


def byte_of(token: str) -> bytes | None:
    """Return the byte that a token of SentencePiece names, as in <0x0A>; None if it is none."""
    found = _HEX_BYTE.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else None


def bytes_of_letters(token: str) -> bytes | None:
    """Return the bytes of a token of a byte-level vocabulary; None if it is not written in it."""
    try:
        return bytes(map(_BYTES.__getitem__, token))
    except KeyError:
        return None


def reader_of(decoder: Any) -> Callable[[str], bytes] | None:
    """Return the function that reads the bytes of tokens, by the `decoder` of a tokenizer.json.

    None for a decoder that joins tokens by rules of its own.
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
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Printable bytes of Latin-1 stand for themselves, the others for letters from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_letters()
