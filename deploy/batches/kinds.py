"""Names the format of a file that holds no JSON lines, by its first bytes."""

from __future__ import annotations

import codecs

_BEGINNINGS = {  # first bytes of files that users give by mistake
    b"\x1f\x8b": "compressed (gzip)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"BZh": "compressed (bzip2)",
    b"\xfd7zXZ": "compressed (xz)",
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
    b"GGUF": "a GGUF file",
}
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # 32-LE begins as 16-LE
_WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
_NUM_BYTES = 16  # checked at the start of a file
_MAX_HEADER_BYTES = 100_000_000  # largest header of a safetensors file
_CONTROLS = frozenset(range(32)) - frozenset(b"\t\n\r")  # bytes that occur in no JSON


def other_kind(head: bytes) -> str:
    """Return the format of a file that begins with these bytes; "" if it may hold JSON lines."""
    for beginning, kind in _BEGINNINGS.items():
        if head.startswith(beginning):
            return kind
    if head.startswith(_BOMS) or any(_is_ascii(head, encoding) for encoding in _WIDE):
        return "not UTF-8 but UTF-16 or UTF-32"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= _MAX_HEADER_BYTES:
        return "a safetensors file"
    return "binary" if _CONTROLS.intersection(head[:_NUM_BYTES]) else ""


def _is_ascii(head: bytes, encoding: str) -> bool:
    """Return whether the first bytes are ASCII text in an encoding with wide characters."""
    width = 4 if "32" in encoding else 2
    text = head[: min(_NUM_BYTES, len(head) - len(head) % width)].decode(encoding, "replace")
    return bool(text) and all(32 <= ord(letter) < 127 or letter in "\t\r\n" for letter in text)
