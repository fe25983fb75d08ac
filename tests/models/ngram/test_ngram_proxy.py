"""The n-gram proxy: the same numbers as KenLM, in natural log, and files it refuses."""

import gzip
import json
import math
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from diffuspec.core.errors import MissingDependencyError, NgramError
from diffuspec.core.interfaces import CausalProxy
from diffuspec.models.ngram import ngram_proxy
from diffuspec.models.ngram.arpa import write_arpa
from diffuspec.models.ngram.estimate import estimate
from diffuspec.models.ngram.ngram_proxy import NgramProxy
from diffuspec.pairs import smollm2, tiny
from tests.models.ngram.conftest import DATA, SMALL_VOCAB_SIZE, read_corpus, read_reference_arpa

KENLM_SCORES = json.loads((DATA / "kenlm_scores.json").read_text())
SHIPPED = {"tiny": (tiny.NGRAM, 4096), "smollm2": (smollm2.NGRAM, 49152)}


@pytest.fixture
def proxy(small_arpa: Path) -> NgramProxy:
    return NgramProxy(small_arpa, vocab_size=SMALL_VOCAB_SIZE)


def load(name: str, folder: Path) -> NgramProxy:
    path, vocab_size = SHIPPED.get(name, (DATA / name, SMALL_VOCAB_SIZE))
    if path.suffix == ".gz":
        text = gzip.decompress(path.read_bytes())
        path = folder / path.stem
        path.write_bytes(text)
    return NgramProxy(path, vocab_size=vocab_size)


@pytest.mark.parametrize("name", KENLM_SCORES)
def test_scores_are_those_of_kenlm_to_the_bit(name: str, tmp_path: Path) -> None:
    proxy = load(name, tmp_path)
    for row in KENLM_SCORES[name]:
        state, scores = proxy.begin([]), []
        for token in row["text"]:
            [[logprob]], [[state]] = proxy.expand([state], [token])
            scores.append(logprob)
        [after], _ = proxy.expand([state], row["candidates"])
        assert scores == [math.log(10) * log10 for log10 in row["scores"]]
        assert after == [math.log(10) * log10 for log10 in row["after"]]


def test_missing_back_offs_read_as_zero(small_arpa: Path, tmp_path: Path) -> None:
    text = small_arpa.read_text()
    assert "\t0\n" in text
    (tmp_path / "short.arpa").write_text(text.replace("\t0\n", "\n"))
    short = NgramProxy(tmp_path / "short.arpa", vocab_size=SMALL_VOCAB_SIZE)
    whole = NgramProxy(small_arpa, vocab_size=SMALL_VOCAB_SIZE)
    for context in ([0, 7], [14, 0], [133]):
        expected = whole.expand([whole.begin(context)], range(0, SMALL_VOCAB_SIZE, 7))
        assert short.expand([short.begin(context)], range(0, SMALL_VOCAB_SIZE, 7)) == expected


def test_states_after_expansion_are_states_after_the_longer_context(proxy: NgramProxy) -> None:
    contexts, candidates = [[0, 7], [14, 0]], [0, 7, 21]
    _, states = proxy.expand([proxy.begin(context) for context in contexts], candidates)
    expected = [[proxy.begin([*context, token]) for token in candidates] for context in contexts]
    assert states == expected
    assert [list(map(hash, row)) for row in states] == [list(map(hash, row)) for row in expected]


def test_only_the_last_tokens_of_a_context_matter(proxy: NgramProxy) -> None:
    assert proxy.begin([0, 14, 7, 0]) == proxy.begin([21, 7, 0])


def test_expanding_does_not_change_the_states_given(proxy: NgramProxy) -> None:
    state = proxy.begin([0, 7])
    first = proxy.expand([state], [0, 7, 14])
    assert proxy.expand([state], [0, 7, 14]) == first


def test_no_states_and_no_candidates_give_empty_tables(proxy: NgramProxy) -> None:
    assert proxy.expand([], [7]) == ([], [])
    assert proxy.expand([proxy.begin([7])], []) == ([[]], [[]])


def test_unseen_ids_score_as_unknown(proxy: NgramProxy) -> None:
    [[first, second]], _ = proxy.expand([proxy.begin([0])], [1, 2])
    assert first == second < -1


@pytest.mark.parametrize("token", [-1, SMALL_VOCAB_SIZE])
def test_ids_outside_the_vocabulary_are_errors(proxy: NgramProxy, token: int) -> None:
    with pytest.raises(NgramError, match=f"token id {token} is outside the vocabulary of 134 ids"):
        proxy.expand([proxy.begin([])], [7, token])


def test_text_and_quantised_binary_score_about_the_same(
    proxy: NgramProxy, small_binary: Path
) -> None:
    binary: CausalProxy = NgramProxy(small_binary, vocab_size=SMALL_VOCAB_SIZE)
    candidates = [0, 7, 14, 133]
    [expected], _ = proxy.expand([proxy.begin([0, 7])], candidates)
    [logprobs], _ = binary.expand([binary.begin([0, 7])], candidates)
    assert logprobs == pytest.approx(expected, abs=0.05)


def test_without_the_compiled_scorer_the_error_says_what_to_install(
    small_arpa: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram_proxy, "is_available", False)
    with pytest.raises(MissingDependencyError, match=r"apt install g\+\+.*without one"):
        NgramProxy(small_arpa, vocab_size=SMALL_VOCAB_SIZE)


@pytest.mark.parametrize("state", [b"1234", bytes(24), None])
def test_states_of_something_else_are_refused(proxy: NgramProxy, state: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        proxy.expand([state], [7])


def test_states_can_be_pickled(proxy: NgramProxy) -> None:
    state = proxy.begin([0, 7])
    assert pickle.loads(pickle.dumps(state)) == state


@pytest.mark.parametrize("name", [name for name in KENLM_SCORES if name.endswith(".bin")])
def test_a_damaged_binary_is_refused_or_scores_something(name: str, tmp_path: Path) -> None:
    content, path = (DATA / name).read_bytes(), tmp_path / "damaged.bin"
    for place in range(PARAMETERS_AT, len(content), 61):
        damaged = bytearray(content)
        damaged[place : place + 8] = b"\xff" * len(damaged[place : place + 8])
        path.write_bytes(damaged)
        try:
            proxy = NgramProxy(path, vocab_size=SMALL_VOCAB_SIZE)
        except NgramError:
            continue
        for context in ([0, 7], [14, 0], [0, 0]):
            proxy.expand([proxy.begin(context)], range(SMALL_VOCAB_SIZE))


def write_text_model(path: Path) -> None:
    text = read_reference_arpa("small", 3)
    for word, token_id in {"the": 7, "model": 14, "1": 21}.items():
        text = text.replace(f"\t{token_id}\t", f"\t{word}\t").replace(
            f" {token_id}\t", f" {word}\t"
        )
        text = text.replace(f"\t{token_id} ", f"\t{word} ").replace(f" {token_id} ", f" {word} ")
        text = text.replace(f" {token_id}\n", f" {word}\n")
    path.write_text(text)


def write_other_vocabulary(path: Path) -> None:
    write_arpa(estimate([[5, 500, 5], [500, 5]]), path)


def write_unigrams(path: Path) -> None:
    write_arpa(estimate(read_corpus("small"), order=1), path)


def write_arpa_without_suffixes(path: Path) -> None:
    lines = read_reference_arpa("small", 3).splitlines(keepends=True)
    bigrams = lines.index("\\2-grams:\n")
    text = "".join(lines[: bigrams + 1] + lines[bigrams + 61 :])
    path.write_text(text.replace("ngram 2=116", "ngram 2=56"))


def write_arpa_with_a_twin(path: Path) -> None:
    lines = read_reference_arpa("small", 3).splitlines(keepends=True)
    lines[-4] = lines[-5]
    path.write_text("".join(lines))


ARPA = read_reference_arpa("small", 3).encode()
BINARY = (DATA / "small.order3.bin").read_bytes()
PARAMETERS_AT = 88  # order, multiplier and so on, after magic and sanity values

BAD_FILES: dict[str, tuple[bytes | Callable[[Path], None], str]] = {
    "empty": (b"", "is empty; expected an ARPA file"),
    "garbage": (bytes(range(256)) * 100, "not a KenLM file"),
    "pickle": (pickle.dumps({"ngrams": [1, 2, 3]}), "not a KenLM file"),
    "one endless line": (b"x" * 100_000, "not a KenLM file"),
    "compressed": (gzip.compress(ARPA), "gzip-compressed; decompress it first"),
    "a folder": (Path.mkdir, "cannot be read: Is a directory"),
    "ARPA without counts": (b"\\data\\\nmuch\n\\end\\\n", "where ARPA has 'ngram 1=count'"),
    "ARPA cut in its counts": (ARPA[:15], "is cut short|'ngram 1=count'"),
    "ARPA cut in its n-grams": (ARPA[: len(ARPA) // 2], "is cut short"),
    "ARPA with too large a count": (ARPA.replace(b"3=154", b"3=1540000"), "is cut short"),
    "ARPA with a wrong count": (ARPA.replace(b"3=154", b"3=155"), "3-grams are not as many"),
    "ARPA with letters for a number": (
        ARPA.replace(b"-1.", b"one", 1),
        "1-grams are not as many lines",
    ),
    "ARPA with letters for a number of a longer one": (
        ARPA.replace(b"\n-0.", b"\none", 1),
        "-grams are not as many lines",
    ),
    "ARPA with an n-gram twice": (write_arpa_with_a_twin, "has a 3-gram twice"),
    "a hash table of KenLM": (
        (DATA / "small.order3.probing.bin").read_bytes(),
        "KenLM probing hash table, which is not read: build a trie",
    ),
    "ARPA that is not suffix-closed": (write_arpa_without_suffixes, "every 3-gram should appear"),
    "binary cut in its magic": (BINARY[:60], "is incomplete or cut short"),
    "binary cut in its header": (BINARY[:100], "is cut short"),
    "binary cut in its counts": (BINARY[:125], "is cut short"),
    "binary cut in its n-grams": (BINARY[: len(BINARY) // 2], "is cut short"),
    "binary cut in its words": (BINARY[:-10], "is cut short"),
    "binary of another version": (BINARY.replace(b"version 5", b"version 4"), "another version"),
    "binary of order 0": (
        BINARY[:PARAMETERS_AT] + b"\0" + BINARY[PARAMETERS_AT + 1 :],
        "damaged header",
    ),
    "binary with a wild count": (
        BINARY.replace(struct.pack("<Q", 116), struct.pack("<Q", 2**60), 1),
        "damaged header",
    ),
    "order 1": (write_unigrams, "has order 1; orders 2 to 6 can be used"),
    "words of text": (write_text_model, "has the word 'model', which is not a token id"),
    "ids outside the vocabulary": (write_other_vocabulary, "of its 2 words 1 are ids"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_files_that_cannot_be_used_are_refused_by_name(
    content: bytes | Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.model"
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    with pytest.raises(NgramError, match=f"bad.model.*({message})"):
        NgramProxy(path, vocab_size=SMALL_VOCAB_SIZE)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NgramError, match=r"absent\.arpa cannot be read: No such file"):
        NgramProxy(tmp_path / "absent.arpa", vocab_size=SMALL_VOCAB_SIZE)


def test_a_binary_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    for size in range(0, len(BINARY), 37):
        path.write_bytes(BINARY[:size])
        with pytest.raises(NgramError):
            NgramProxy(path, vocab_size=SMALL_VOCAB_SIZE)
