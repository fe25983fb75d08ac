"""ARPA files, read into a trie. Their words are token ids."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.errors import NgramError
from diffuspec.models.ngram.trie import UNIGRAM, UNSEEN, Table, Trie, address_of, token_id_of

_UNKNOWN_LOG10_PROB = -100.0  # KenLM's value for a model without <unk>
_SPECIAL_WORDS = (b"<unk>", b"<s>", b"</s>")
_WITHOUT_BACKOFF = re.compile(rb"(?m)^([^\t\n]+\t[^\t\n]+)$")
_RECORD = np.dtype([("word", "<u4"), ("prob", "<f4"), ("backoff", "<f4"), ("next", "<u4")])

Indices = NDArray[np.int64]


def read_arpa(path: str | Path, num_ngrams: Sequence[int]) -> Trie:
    """Read a file with these numbers of n-grams. Raises NgramError, which names it, and OSError."""
    parts = re.split(rb"(?m)^\\(?:\d-grams:|end\\)[ \r]*\n?", Path(path).read_bytes())
    if len(parts) < len(num_ngrams) + 2:
        raise NgramError(f"{path} lacks n-grams of some orders: copy or build it again")
    builder = _Builder(path, parts[1], num_ngrams[0])
    for count, part in zip(num_ngrams[1:], parts[2:], strict=False):
        builder.add(part, count)
    return builder.trie()


class _Builder:
    """Takes the n-grams of one order after another."""

    def __init__(self, path: str | Path, part: bytes, num_words: int) -> None:
        self._path = path
        lines = [line.split() for line in part.splitlines() if line.strip()]
        if len(lines) != num_words or not all(2 <= len(line) <= 3 for line in lines):
            raise self._damage(1)
        entries = {line[1]: (line[0], *line[2:]) for line in lines}
        entries = {b"<unk>": entries.pop(b"<unk>", (b"%d" % _UNKNOWN_LOG10_PROB,)), **entries}
        self.words = list(entries)
        try:
            numbers = [(float(prob), float(*rest)) for prob, *rest in entries.values()]
        except ValueError:
            raise self._damage(1) from None
        for word in self.words:
            if token_id_of(word) is None and word not in _SPECIAL_WORDS:
                text = word.decode(errors="replace")
                raise NgramError(f"{path} has the word {text!r:.40}, which is not a token id")
        self._unigrams = np.zeros(len(self.words) + 1, UNIGRAM)
        self._unigrams["prob"][:-1] = [min(prob, 0.0) for prob, _ in numbers]
        self._set_backoffs(self._unigrams[:-1], np.array([backoff for _, backoff in numbers]))
        self._records: list[NDArray[np.void]] = [self._unigrams]
        self._keys: list[Indices] = []  # parent * num_words + word, sorted, for each order above 1
        self._index = _index_of_ids(self.words)

    def add(self, part: bytes, count: int) -> None:
        order = len(self._records) + 1
        words, probs, backoffs = self._parse(part, count, order)
        suffixes, prefixes = self._find(words[:, 1:]), self._find(words[:, :-1])
        if (suffixes < 0).any() or (prefixes < 0).any():
            missing = order - 1
            raise NgramError(
                f"{self._path} has {order}-grams whose first or last {missing} words are not among"
                f" its {missing}-grams: every {order}-gram should appear with both"
            )
        keys = suffixes * len(self.words) + words[:, 0]
        by_key = np.argsort(keys, kind="stable")
        if (np.diff(keys[by_key]) == 0).any():
            raise NgramError(f"{self._path} has a {order}-gram twice")
        records = np.zeros(count + 2, _RECORD)  # one beyond the last, and padding
        records["word"][:count] = words[by_key, 0]
        records["prob"][:count] = np.minimum(probs[by_key], 0)
        self._set_backoffs(records[:count], backoffs[by_key])
        parents = self._records[-1]
        parents["next"] = np.searchsorted(suffixes[by_key], np.arange(len(parents)))
        seen = parents["backoff"][prefixes] == 0
        parents["backoff"][prefixes[seen]] = 0.0
        self._records.append(records)
        self._keys.append(keys[by_key])

    def trie(self) -> Trie:
        *middle, longest = (self._table(records) for records in self._records[1:])
        longest.count = len(self._keys[-1])
        memory = (self._records, self._unigrams)
        return Trie(self.words, address_of(self._unigrams), [*middle, longest], memory)

    def _parse(
        self, part: bytes, count: int, order: int
    ) -> tuple[Indices, NDArray[np.float64], NDArray[np.float64]]:
        """Return the words, [count, order], log10 probabilities and back-offs of n-grams."""
        has_backoffs = (num_tabs := part.count(b"\t")) != count
        if has_backoffs and num_tabs != 2 * count:  # only some lines have one
            part = _WITHOUT_BACKOFF.sub(rb"\1\t0", part)
        for i, word in enumerate(_SPECIAL_WORDS):
            part = part.replace(word, b"%d" % (len(self._index) - 3 + i))
        numbers = _numbers(part)
        if len(numbers) != count * (order + 1 + has_backoffs):
            raise self._damage(order)
        table = numbers.reshape(count, order + 1 + has_backoffs)
        ids = table[:, 1 : order + 1].astype(np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < len(self._index):
            raise self._damage(order)
        backoffs = table[:, -1] if has_backoffs else np.zeros(count)
        return self._index[ids], table[:, 0], backoffs

    def _find(self, words: Indices) -> Indices:
        """Return the indices of n-grams, [N, n], of an order that was added; -1: not there."""
        indices = words[:, -1]
        for i, keys in zip(range(words.shape[1] - 2, -1, -1), self._keys, strict=False):
            wanted = indices * len(self.words) + words[:, i]
            places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            indices = np.where((indices >= 0) & (keys[places] == wanted), places, -1)
        return indices

    @staticmethod
    def _set_backoffs(records: NDArray[np.void], backoffs: NDArray[np.float64]) -> None:
        records["backoff"] = np.where(backoffs == 0, UNSEEN, backoffs.astype(np.float32))

    @staticmethod
    def _table(records: NDArray[np.void]) -> Table:
        places: Mapping[str, int] = {"prob_at": 32, "backoff_at": 64, "next_at": 96}
        widths = {"prob_bits": 31, "backoff_bits": 32, "next_bits": 32}
        return Table(
            records=address_of(records),
            count=len(records) - 2,
            bits=8 * _RECORD.itemsize,
            word_bits=32,
            **places,
            **widths,
        )

    def _damage(self, order: int) -> NgramError:
        return NgramError(
            f"{self._path} is damaged: its {order}-grams are not as many lines as its head says,"
            " of a number, words that are token ids, and a number"
        )


def _numbers(part: bytes) -> NDArray[np.float64]:
    """Numbers of a text, none if a word is not a number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # older NumPy warns, newer raises
        try:
            return np.fromstring(part, sep=" ")
        except ValueError:
            return np.empty(0)


def _index_of_ids(words: Sequence[bytes]) -> Indices:
    """Index of the word of every token id, then of <unk>, <s> and </s>; -1: it is not in words."""
    ids = [token_id_of(word) for word in words]
    index = np.full(max((i for i in ids if i is not None), default=-1) + 4, -1)
    for i, (token_id, word) in enumerate(zip(ids, words, strict=True)):
        if token_id is not None:
            index[token_id] = i
        elif word in _SPECIAL_WORDS:
            index[len(index) - 3 + _SPECIAL_WORDS.index(word)] = i
    return index
