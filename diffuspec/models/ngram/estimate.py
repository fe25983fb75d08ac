"""Estimates an n-gram model over token ids: interpolated modified Kneser-Ney.

This is the estimator of KenLM's `lmplz` without pruning, as described by Heafield et al., "Scalable
Modified Kneser-Ney Language Model Estimation" (ACL 2013), section 3, after Chen and Goodman (1998),
equation 26. For the same corpus the numbers are those of `lmplz`.

Every n-gram has an integer key: its suffix's rank among the (n-1)-grams times the vocabulary size,
plus its first word. Counting an order is one sort of 64-bit keys, and the rest is indexing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.errors import NgramError
from diffuspec.models.ngram.arpa import BOS, EOS, NgramModel, NgramTable, OnProgress
from diffuspec.models.ngram.kenlm_file import MAX_ORDER

_Ints: TypeAlias = NDArray[np.int64]
_Ranks: TypeAlias = NDArray[np.int32]
_Floats: TypeAlias = NDArray[np.float64]
Discounts: TypeAlias = tuple[float, float, float]  # for counts 1, 2, and 3 or more

_MAX_TOKEN_ID = 2**24 - 1  # rank (31 bits) and word (25 bits) share a 64-bit key
DISCOUNT_FALLBACK: Discounts = (0.5, 1.0, 1.5)
_ZERO = 1e-99  # represents probability 0, by the convention of ARPA files


@dataclass(frozen=True, slots=True)
class _Stream:
    """The corpus as one sequence of words, each sentence between <s> and </s>."""

    words: _Ranks  # [num_positions] vocabulary indices
    offsets: _Ranks  # [num_positions] position within the sentence; 0 is <s>
    token_ids: _Ints  # [vocabulary size - 3], in order of first appearance

    @property
    def vocab_size(self) -> int:
        return len(self.token_ids) + 3


@dataclass(frozen=True, slots=True)
class _Counts:
    """The n-grams of one order, ascending by (suffix, first word). All arrays [num_ngrams]."""

    firsts: _Ranks  # the first word
    suffixes: _Ranks  # rank of the n-gram without its first word, one order below
    contexts: _Ranks  # rank of the n-gram without its last word, one order below
    occurrences: _Ints  # number of occurrences in the corpus

    def __len__(self) -> int:
        return len(self.firsts)


def estimate(
    sentences: Iterable[Sequence[int]],
    *,
    order: int = 3,
    discount_fallback: Discounts | None = DISCOUNT_FALLBACK,
    on_progress: OnProgress | None = None,
) -> NgramModel:
    """Return a model estimated from sentences of token ids.

    <s> and </s> are added around each sentence, also around empty ones. If the discounts of an
    order cannot be estimated (small or artificial data), discount_fallback is used; None makes that
    an error, as in `lmplz` without `--discount_fallback`. on_progress is called with the stage and
    its progress.

    Raises NgramError for an order outside 1..6, ids outside 0..2**24 - 1, or a corpus without
    n-grams of that order.
    """
    if not 1 <= order <= MAX_ORDER:
        raise NgramError(f"n-gram order must be 1 to {MAX_ORDER}, got {order}")
    report = on_progress or (lambda stage, done: None)
    report("reading", 0.0)
    stream = _read(sentences)
    report("reading", 1.0)
    counts = _count_all(stream, order, report)
    return _smooth_all(stream, counts, discount_fallback, report)


def _read(sentences: Iterable[Sequence[int]]) -> _Stream:
    tokens, lengths = array("q"), array("q")
    num_tokens = 0
    for sentence in sentences:
        try:
            tokens.extend(sentence)
        except (TypeError, OverflowError) as error:
            raise NgramError(f"sentence {len(lengths)} is not a sequence of ids: {error}") from None
        lengths.append(len(tokens) - num_tokens)
        num_tokens = len(tokens)
    if not lengths:
        raise NgramError("the corpus is empty: nothing to estimate an n-gram model from")
    return _join(np.frombuffer(tokens, dtype=np.int64), np.frombuffer(lengths, dtype=np.int64))


def _join(tokens: _Ints, lengths: _Ints) -> _Stream:
    """Number the words by first appearance, as `lmplz` does, and add <s> and </s>."""
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() <= _MAX_TOKEN_ID:
        wrong = tokens.min() if tokens.min() < 0 else tokens.max()
        raise NgramError(f"token ids must be 0 to {_MAX_TOKEN_ID}, got {wrong}")
    num_ids = int(tokens.max(initial=-1)) + 1
    first_seen = np.full(num_ids, len(tokens))
    # for repeated indices the last write wins
    first_seen[tokens[::-1]] = np.arange(len(tokens))[::-1]
    token_ids = np.argsort(first_seen, kind="stable")[: np.sum(first_seen < len(tokens))]
    word_of = np.zeros(num_ids, dtype=np.int32)
    word_of[token_ids] = np.arange(3, 3 + len(token_ids))

    begins = np.cumsum(lengths + 2) - (lengths + 2)
    words = np.full(len(tokens) + 2 * len(lengths), -1, dtype=np.int32)
    words[begins] = BOS
    words[begins + lengths + 1] = EOS
    words[words < 0] = word_of[tokens]
    offsets = np.arange(len(words)) - np.repeat(begins, lengths + 2)
    return _Stream(words, offsets.astype(np.int32), token_ids)


def _count_all(stream: _Stream, order: int, report: OnProgress) -> list[_Counts]:
    counts = [_count_unigrams(stream)]
    ranks = stream.words
    report("counting", 1 / order)
    for n in range(2, order + 1):
        found, ranks = _count(stream, n, ranks)
        counts.append(found)
        report("counting", n / order)
    return counts


def _count_unigrams(stream: _Stream) -> _Counts:
    """Count words. Their suffix and context are the empty n-gram, of rank 0."""
    occurrences = np.bincount(stream.words, minlength=stream.vocab_size)
    occurrences[BOS] = 0  # <s> is only a context, never predicted
    nothing = np.zeros(stream.vocab_size, dtype=np.int32)
    firsts = np.arange(stream.vocab_size, dtype=np.int32)
    return _Counts(firsts, nothing, nothing, occurrences)


def _count(stream: _Stream, n: int, ranks: _Ranks) -> tuple[_Counts, _Ranks]:
    """Count n-grams, for n of 2 or more.

    `ranks` holds the rank of the (n-1)-gram that ends at each position. Also returns the rank of
    the n-gram that ends at each position; 0 if there is none.
    """
    ends = np.flatnonzero(stream.offsets >= n - 1)
    if not len(ends):
        raise NgramError(
            f"no sentence has {n - 2} tokens or more, so there are no {n}-grams; lower the order"
        )
    keys = ranks[ends] * np.int64(stream.vocab_size) + stream.words[ends - (n - 1)]
    order = np.argsort(keys)
    keys, ends = keys[order], ends[order]
    is_new = np.concatenate(([True], keys[1:] != keys[:-1]))
    next_ranks = np.zeros_like(ranks)
    next_ranks[ends] = np.cumsum(is_new) - 1
    starts = np.flatnonzero(is_new)
    suffixes, firsts = np.divmod(keys[starts], stream.vocab_size)
    counts = _Counts(
        firsts=firsts.astype(np.int32),
        suffixes=suffixes.astype(np.int32),
        contexts=ranks[ends[starts] - 1],
        occurrences=np.diff(starts, append=len(keys)),
    )
    return counts, next_ranks


def _smooth_all(
    stream: _Stream, counts: list[_Counts], fallback: Discounts | None, report: OnProgress
) -> NgramModel:
    """Turn counts into probabilities, order by order, from the uniform distribution up.

    p(w | context) = (a - D(a)) / total(context) + gamma(context) * p(w | shorter context), where
    a is the adjusted count, and gamma(context), the back-off, the mass removed by the discounts D.
    """
    words = np.zeros((1, 0), dtype=np.int32)  # [num_ngrams, n]
    probs = np.full(1, 1 / (stream.vocab_size - 1))  # <s> is never predicted
    tables: list[NgramTable] = []
    for n, level in enumerate(counts, 1):
        adjusted = _adjusted_counts(counts, n)
        discounts = _discounts(_counts_of_counts(counts, n, adjusted), n, fallback)
        taken = np.array([0.0, *discounts])[np.minimum(adjusted, 3)]
        totals = np.bincount(level.contexts, weights=adjusted, minlength=len(probs))
        mass = np.bincount(level.contexts, weights=taken, minlength=len(probs))
        gammas = np.divide(mass, totals, out=np.ones_like(mass), where=totals > 0)
        if n > 1:
            tables.append(NgramTable(words, _log10(probs), _log10(gammas)))
        probs = (adjusted - taken) / totals[level.contexts] + (
            gammas[level.contexts] * probs[level.suffixes]
        )
        words = np.column_stack((level.firsts, words[level.suffixes]))
        if n == 1:
            probs[BOS] = 1.0  # so that sentences can be scored including their <s>
        report("smoothing", n / len(counts))
    tables.append(NgramTable(words, _log10(probs), None))
    return NgramModel(stream.token_ids, tuple(tables))


def _adjusted_counts(counts: list[_Counts], n: int) -> _Ints:
    """Return the number of distinct words that precede each n-gram.

    N-grams of the highest order, and those that start with <s>, keep their number of occurrences,
    because nothing can precede them.
    """
    level = counts[n - 1]
    if n == len(counts):
        return level.occurrences
    extensions = np.bincount(counts[n].suffixes, minlength=len(level))
    return np.where(level.firsts == BOS, level.occurrences, extensions)


def _counts_of_counts(counts: list[_Counts], n: int, adjusted: _Ints) -> list[int]:
    """Return the numbers of n-grams with adjusted counts 0, 1, 2, 3 and 4."""
    histogram = np.bincount(np.minimum(adjusted, 5), minlength=6)
    if n < len(counts) and _is_last_suffix(counts, n):
        # `lmplz` counts the very last n-gram of each lower order by its occurrences. This only
        # matters for small corpora, and keeps our numbers equal to its numbers.
        histogram[min(adjusted[-1], 5)] -= 1
        histogram[min(counts[n - 1].occurrences[-1], 5)] += 1
    return [int(number) for number in histogram[:5]]


def _is_last_suffix(counts: list[_Counts], n: int) -> bool:
    """Return whether the last n-gram ends with the last n-gram of every lower order."""
    return all(counts[i].suffixes[-1] == len(counts[i - 1]) - 1 for i in range(1, n))


def _discounts(num_with: list[int], n: int, fallback: Discounts | None) -> Discounts:
    """Estimate the discounts of adjusted counts 1, 2, and 3 or more.

    Computed in float32 with the operations in `lmplz`'s order, so that both fail on the same data.
    """
    single = np.float32
    if min(num_with[1:4]) > 0:
        # Chen and Goodman, equation 26: Y = n1 / (n1 + 2 n2), D_j = j - (j + 1) Y n_{j+1} / n_j
        y = single(num_with[1]) / single(num_with[1] + 2.0 * num_with[2])
        one, two, three = (
            float(single(j) - single(j + 1) * y * single(num_with[j + 1]) / single(num_with[j]))
            for j in (1, 2, 3)
        )
        if 0 <= one <= 1 and 0 <= two <= 2 and 0 <= three <= 3:
            return one, two, three
    if fallback is None:
        raise NgramError(
            f"cannot estimate the discounts of {n}-grams: {num_with[1:]} of them have adjusted"
            " count 1, 2, 3 and 4; use more data, or give discount_fallback"
        )
    return fallback


def _log10(values: _Floats) -> _Floats:
    """Return finite log10 values of at most 0 (despite rounding), as ARPA files require."""
    return np.minimum(np.log10(np.maximum(values, _ZERO)), 0.0)
