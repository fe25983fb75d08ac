"""An estimated n-gram model in memory, and its export to an ARPA file.

Probabilities are log10 here, as in the format; everywhere else in diffuspec they are natural
logarithms.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from diffuspec.models.ngram.checksum import publish

OnProgress: TypeAlias = Callable[[str, float], None]  # (stage, progress from 0 to 1)

_SPECIAL_WORDS = ("<unk>", "<s>", "</s>")  # the first words of every vocabulary
BOS, EOS = 1, 2  # indices of <s> and </s>
_LINES_PER_WRITE = 1 << 16


@dataclass(frozen=True, slots=True)
class NgramTable:
    """All n-grams of one order, sorted by their last word, then the one before it, and so on."""

    words: NDArray[np.int32]  # [num_ngrams, order] indices into the vocabulary, left to right
    log10_probs: NDArray[np.float64]  # [num_ngrams], at most 0
    log10_backoffs: NDArray[np.float64] | None  # [num_ngrams]; None for the highest order

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, slots=True)
class NgramModel:
    """A back-off model: p(word | context) is that of the longest listed n-gram, times back-offs.

    Closed under suffixes and prefixes: a listed n-gram without its first or its last word is listed
    too. KenLM refuses models that are not closed under suffixes.
    """

    token_ids: NDArray[np.int64]  # [num_words - 3] token ids of words 3, 4, ...
    tables: tuple[NgramTable, ...]  # tables[i] holds the (i + 1)-grams

    @property
    def order(self) -> int:
        return len(self.tables)

    @property
    def vocabulary(self) -> list[str]:
        """Words as spelled in files: <unk>, <s>, </s>, then decimal token ids."""
        return [*_SPECIAL_WORDS, *map(str, self.token_ids.tolist())]


def write_arpa(model: NgramModel, path: str | Path, on_progress: OnProgress | None = None) -> None:
    """Write the model as an ARPA file, with a checksum beside it.

    The file appears, or replaces the old one, when it is complete; an interrupted write leaves
    the folder as it was. Raises OSError.
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    try:
        with open(handle, "w", encoding="ascii", newline="\n") as file:
            _write(model, file, on_progress or _ignore)
        os.chmod(temporary, 0o644)  # mkstemp makes it unreadable to others
        publish(Path(temporary), path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _ignore(stage: str, done: float) -> None:
    pass


def _write(model: NgramModel, file: IO[str], on_progress: OnProgress) -> None:
    num_ngrams = sum(map(len, model.tables))
    vocabulary = np.array(model.vocabulary, dtype=object)
    num_written = 0
    file.write("\\data\\\n")
    file.writelines(f"ngram {n}={len(table)}\n" for n, table in enumerate(model.tables, 1))
    for n, table in enumerate(model.tables, 1):
        file.write(f"\n\\{n}-grams:\n")
        for chunk, num_lines in _lines(table, vocabulary):
            file.write(chunk)
            num_written += num_lines
            on_progress("writing", num_written / num_ngrams)
    file.write("\n\\end\\\n")


def _lines(table: NgramTable, vocabulary: NDArray[np.object_]) -> Iterator[tuple[str, int]]:
    """Yield the table's text in chunks, each with its number of lines."""
    for start in range(0, len(table), _LINES_PER_WRITE):
        rows = slice(start, start + _LINES_PER_WRITE)
        columns = [vocabulary[column].tolist() for column in table.words[rows].T]
        ngrams = columns[0] if len(columns) == 1 else map(" ".join, zip(*columns, strict=True))
        probs = table.log10_probs[rows].tolist()
        # 7 digits are the precision of float32, which KenLM reads.
        if table.log10_backoffs is None:
            lines = [f"{p:.7g}\t{ngram}\n" for p, ngram in zip(probs, ngrams, strict=True)]
        else:
            backoffs = table.log10_backoffs[rows].tolist()
            lines = [
                f"{p:.7g}\t{ngram}\t{backoff:.7g}\n"
                for p, ngram, backoff in zip(probs, ngrams, backoffs, strict=True)
            ]
        yield "".join(lines), len(lines)
