"""A back-off model as a trie that the compiled scorer reads.

N-grams are found by their last word, then the one before it, and so on: the children of an n-gram
are the n-grams with one more word at the front, in the order of that word.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNIGRAM = np.dtype([("prob", "<f4"), ("backoff", "<f4"), ("next", "<u8")])
UNSEEN = np.float32(-0.0)  # the back-off of an n-gram with which no longer one begins


class Table(ctypes.Structure):
    """N-grams of one order, in records of bits; see trie.cpp. Places and widths are in bits."""

    _fields_ = (
        ("records", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("bits", ctypes.c_uint64),
        ("word_bits", ctypes.c_uint64),
        ("prob_at", ctypes.c_uint64),
        ("prob_bits", ctypes.c_uint64),
        ("probs", ctypes.c_void_p),
        ("backoff_at", ctypes.c_uint64),
        ("backoff_bits", ctypes.c_uint64),
        ("backoffs", ctypes.c_void_p),
        ("next_at", ctypes.c_uint64),
        ("next_bits", ctypes.c_uint64),
        ("high", ctypes.c_void_p),
        ("num_high", ctypes.c_uint64),
    )


Tables = Table * 5


class Model(ctypes.Structure):
    """What the scorer reads; see trie.cpp."""

    _fields_ = (
        ("unigrams", ctypes.c_void_p),
        ("num_words", ctypes.c_uint64),
        ("word_of", ctypes.c_void_p),
        ("vocab_size", ctypes.c_uint64),
        ("order", ctypes.c_uint64),
        ("tables", Tables),
    )


@dataclass(frozen=True, slots=True)
class Trie:
    """A model in memory or mapped from a file."""

    words: Sequence[bytes]  # as spelled in the file; the first one is <unk>
    unigrams: int  # address of [len(words) + 1] UNIGRAM
    tables: Sequence[Table]  # one for each order from 2 on
    memory: Any  # owns what the addresses point to

    def index_of(self, vocab_size: int) -> NDArray[np.uint32]:
        """Index of the word of every token id below vocab_size; 0: it is not in the model."""
        index = np.zeros(vocab_size, np.uint32)
        for i, word in enumerate(self.words):
            if (token_id := token_id_of(word)) is not None and token_id < vocab_size:
                index[token_id] = i
        return index


def token_id_of(word: bytes) -> int | None:
    """The token id that a word spells, if it does so as we do: in decimal, without zeros ahead."""
    if not word.isdigit() or len(word) > 9 or (word[:1] == b"0" and word != b"0"):
        return None
    return int(word)


def address_of(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)
