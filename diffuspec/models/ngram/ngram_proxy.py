"""The causal proxy of CPS: an n-gram model over token ids, scored by compiled code.

Files have log10 and words. Here the words are decimal token ids, and probabilities are natural
logarithms. The scores are those of KenLM, to the bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.errors import MissingDependencyError, NgramError
from diffuspec.core.interfaces import ProxyState
from diffuspec.models.ngram.arpa_trie import read_arpa
from diffuspec.models.ngram.kenlm_file import ArpaHeader, BinaryHeader, read_header
from diffuspec.models.ngram.trie import Model, Tables, Trie, address_of
from diffuspec.models.ngram.trie_file import map_trie

try:
    from diffuspec.models.ngram import _trie
except ImportError:  # installed without a C++ compiler
    is_available = False
else:
    is_available = True


class NgramProxy:
    """Scores token ids with an n-gram model: a `CausalProxy` over an ARPA or KenLM binary file.

    States are bytes: equal if they score every continuation equally. Ids that the model does not
    know have the probability of <unk>. A proxy does not change after loading, so threads may share
    it.
    """

    def __init__(self, path: str | Path, *, vocab_size: int) -> None:
        """Load a model whose words are token ids below vocab_size.

        Raises NgramError, which names the file, if it cannot be read, is damaged, or has other
        words. Raises MissingDependencyError if the scorer was not compiled.
        """
        if not is_available:
            raise MissingDependencyError(
                "an n-gram model is configured, whose scorer was not compiled on installation:"
                " install g++ and Python's headers (apt install g++ python3-dev), then"
                " `pip install --force-reinstall --no-deps diffuspec`. Drafting works without one,"
                " too: `--ngram none`, `ngram: null`"
            )
        header = read_header(path)
        self.order = len(header.num_ngrams)
        trie = _read_trie(path, header)
        index = trie.index_of(vocab_size)
        _check_vocabulary(trie, path, index)
        self._owners = trie.memory, index
        self._model = Model(
            unigrams=trie.unigrams,
            num_words=len(trie.words),
            word_of=address_of(index),
            vocab_size=vocab_size,
            order=self.order,
            tables=Tables(*trie.tables),
        )
        self._address = ctypes.addressof(self._model)

    @property
    def max_context_tokens(self) -> int:
        return self.order - 1

    def begin(self, context: Sequence[int], salt: str | None = None) -> ProxyState:
        """Return the state after the last order - 1 tokens of a context.

        The context is from the middle of a text, so it does not start with <s>.
        """
        state: ProxyState = b""
        for token_id in context[-(self.order - 1) :]:
            [[state]] = self.expand([state], [token_id])[1]
        return state

    def expand(
        self, states: Sequence[ProxyState], candidates: Sequence[int]
    ) -> tuple[list[list[float]], list[list[ProxyState]]]:
        """Score every candidate after every state; see `CausalProxy.expand`.

        Raises NgramError for a candidate outside the vocabulary.
        """
        try:
            return _trie.expand(self._address, states, candidates)
        except IndexError as error:
            raise NgramError(str(error)) from None


def _read_trie(path: str | Path, header: ArpaHeader | BinaryHeader) -> Trie:
    try:
        if isinstance(header, BinaryHeader):
            return map_trie(path, header)
        return read_arpa(path, header.num_ngrams)
    except OSError as error:
        raise NgramError(f"{path} cannot be read: {error.strerror}") from error


def _check_vocabulary(trie: Trie, path: str | Path, index: NDArray[np.uint32]) -> None:
    """Raise NgramError unless all words are token ids."""
    num_words = len(trie.words) - sum(word in trie.words for word in (b"<unk>", b"<s>", b"</s>"))
    num_known = int(np.count_nonzero(index))
    if num_known == 0 or num_known < num_words:
        raise NgramError(
            f"{path} is not a model of these token ids: of its {num_words} words {num_known} are"
            f" ids from 0 to {len(index) - 1}. Was it built from text, or with another tokenizer?"
        )
