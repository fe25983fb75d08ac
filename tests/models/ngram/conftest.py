"""Corpora and models that KenLM's own tools made.

Each corpus in data/ is lines of token ids drawn by `random.Random(seed).choices` from words with
Zipf weights, `randint(0, max_length)` to a line: `small` has 20 words, some lines empty; `zipf`
has 300 and ends with two equal lines of which the middle word is new. Beside each corpus stands
what KenLM 0.3.0 makes of it:

    lmplz -o 3 --discount_fallback < small.txt      small.order3.arpa.gz (1 and 5 likewise)
    lmplz -o 3 < zipf.txt                           zipf.order3.arpa.gz
    build_binary -q 8 -b 8 trie                     small.order3.bin, from small.order3.arpa
    build_binary probing                            small.order3.probing.bin, from the same
    build_binary trie                               small.order5.trie.bin, from small.order5.arpa
    build_binary -a 22 trie                         small.order5.array.bin, from the same
    build_binary -q 5 -b 6 -a 22 trie               small.order5.quant-array.bin, from the same

kenlm_scores.json has `BaseScore` of KenLM 0.3.0 for each token of texts, from its null context on,
and for candidates after each text; `tiny` and `smollm2` are the n-gram models of these pairs.
"""

import gzip
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
SMALL_VOCAB_SIZE = 7 * 19 + 1  # the ids are multiples of 7


def read_corpus(name: str) -> list[list[int]]:
    lines = (DATA / f"{name}.txt").read_text().splitlines()
    return [[int(word) for word in line.split()] for line in lines]


def read_reference_arpa(name: str, order: int) -> str:
    return gzip.decompress((DATA / f"{name}.order{order}.arpa.gz").read_bytes()).decode()


@pytest.fixture
def small_arpa(tmp_path: Path) -> Path:
    path = tmp_path / "small.arpa"
    path.write_text(read_reference_arpa("small", 3))
    return path


@pytest.fixture
def small_binary() -> Path:
    return DATA / "small.order3.bin"
