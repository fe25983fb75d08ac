"""KenLM's binary files, mapped into memory: tries, plain or quantised, with long or short pointers.

Every size follows from the header and is compared with the file before anything is read.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from diffuspec.core.errors import NgramError
from diffuspec.models.ngram.kenlm_file import BinaryHeader
from diffuspec.models.ngram.trie import UNIGRAM, Table, Trie, address_of

_TRIE, _QUANT_TRIE, _ARRAY_TRIE, _QUANT_ARRAY_TRIE = 2, 3, 4, 5
_FORMATS = ("probing hash table", "probing hash table with rest costs")
_MAX_VALUE_BITS = 25
_PADDING = 8  # bytes after a table's records, since 64 bits are read at once


def map_trie(path: str | Path, header: BinaryHeader) -> Trie:
    """Map a binary file. Raises NgramError, which names the file, and OSError."""
    if header.model_type < _TRIE:
        raise NgramError(
            f"{path} is a KenLM {_FORMATS[header.model_type]}, which is not read: build a trie from"
            " the ARPA file (`build_binary trie FILE.arpa FILE.bin`), or use that file as it is"
        )
    if header.model_type > _QUANT_ARRAY_TRIE or not header.has_vocabulary:
        raise NgramError(
            f"{path} is a KenLM binary of an unknown kind or without its words; build it again by"
            " `build_binary trie FILE.arpa FILE.bin`"
        )
    with open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _Mapping(path, content, header).trie()


@dataclass(frozen=True, slots=True)
class _Values:
    """How probabilities and back-offs are written: as floats, or as numbers of table entries."""

    prob_bits: int = 31
    backoff_bits: int = 32
    is_quantised: bool = False


class _Mapping:
    """Takes the parts of a file one after another, in its order."""

    def __init__(self, path: str | Path, content: mmap.mmap, header: BinaryHeader) -> None:
        self._path, self._content, self._counts = path, content, header.num_ngrams
        self._bytes = np.frombuffer(content, np.uint8)
        self._is_quantised = header.model_type in (_QUANT_TRIE, _QUANT_ARRAY_TRIE)
        self._has_high = header.model_type in (_ARRAY_TRIE, _QUANT_ARRAY_TRIE)
        self._at = header.num_bytes

    def trie(self) -> Trie:
        counts, num_words = self._counts, self._counts[0]
        self._take(8 + 8 * num_words)  # hashes of the words
        values, tables = self._take_values()
        unigrams = self._take((num_words + 2) * UNIGRAM.itemsize)
        for n in range(1, len(counts) - 1):
            self._take_middle(tables[n - 1], values, counts[n], counts[n + 1])
        self._take_records(tables[-1], replace(values, backoff_bits=0), counts[-1], 0)
        return Trie(self._words(), unigrams, tables, self._bytes)

    def _take(self, size: int) -> int:
        """Return the address of the next bytes, and go beyond them."""
        start = self._at
        self._at += size
        if self._at > len(self._bytes):
            raise NgramError(f"{self._path} is cut short; copy or build it again")
        return address_of(self._bytes) + start

    def _take_values(self) -> tuple[_Values, list[Table]]:
        tables = [Table() for _ in self._counts[1:]]
        if not self._is_quantised:
            return _Values(), tables
        version, *bits = self._content[self._at : self._at + 3]
        self._take(8)
        if version != 2 or not all(1 <= width <= _MAX_VALUE_BITS for width in bits):
            raise NgramError(f"{self._path} is damaged, or quantised in an unknown way")
        for table in tables:
            table.probs = self._take(4 << bits[0])
            if table is not tables[-1]:
                table.backoffs = self._take(4 << bits[1])
        return _Values(bits[0], bits[1], is_quantised=True), tables

    def _take_middle(self, table: Table, values: _Values, count: int, num_children: int) -> None:
        next_bits = num_children.bit_length()
        if self._has_high:
            version, most = self._content[self._at : self._at + 2]
            if version != 0:
                raise NgramError(f"{self._path} is damaged, or compressed in an unknown way")
            chopped = _chopped_bits(count + 1, num_children, most)
            next_bits -= chopped
            table.num_high = (num_children >> next_bits) + 1
            padding = -self._at % 8
            start = self._take(8 * (1 + table.num_high) + 7)
            table.high = start + padding + 8
        self._take_records(table, values, count, next_bits)

    def _take_records(self, table: Table, values: _Values, count: int, next_bits: int) -> None:
        """A record holds its word, its values and the index of its first child."""
        table.count, table.next_bits = count, next_bits
        table.word_bits = at = self._counts[0].bit_length()
        table.prob_bits, table.backoff_bits = values.prob_bits, values.backoff_bits
        # Floats are stored with the probability first, numbers of entries with the back-off.
        table.prob_at = at + (values.backoff_bits if values.is_quantised else 0)
        table.backoff_at = at + (0 if values.is_quantised else values.prob_bits)
        table.next_at = at + values.prob_bits + values.backoff_bits
        table.bits = table.next_at + next_bits
        table.records = self._take(((1 + count) * table.bits + 7) // 8 + _PADDING)

    def _words(self) -> list[bytes]:
        words = self._content[self._at :].split(b"\0")[:-1]
        if len(words) < self._counts[0] or words[0] != b"<unk>":
            raise NgramError(f"{self._path} is cut short; copy or build it again")
        return words[: self._counts[0]]


def _chopped_bits(num_offsets: int, num_children: int, most: int) -> int:
    """Number of high bits of a pointer that KenLM keeps in a table of its own: it saves most."""
    width = num_children.bit_length()

    def change(chopped: int) -> int:
        return (num_children >> (width - chopped)) * 64 - num_offsets * chopped

    return min(range(min(width, most) + 1), key=change)
