"""The n-gram proxy: the same numbers as KenLM, in natural log, and files it refuses."""

import gzip
import math
import pickle
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import kenlm
import pytest

from diffuspec.core.errors import MissingDependencyError, NgramError
from diffuspec.core.interfaces import CausalProxy
from diffuspec.models.ngram.arpa import write_arpa
from diffuspec.models.ngram.estimate import estimate
from diffuspec.models.ngram.kenlm_proxy import KenlmProxy
from tests.models.ngram.conftest import DATA, SMALL_VOCAB_SIZE, read_corpus, read_reference_arpa


@pytest.fixture
def proxy(small_arpa: Path) -> KenlmProxy:
    return KenlmProxy(small_arpa, vocab_size=SMALL_VOCAB_SIZE)


@pytest.fixture
def model(small_arpa: Path) -> kenlm.Model:
    config = kenlm.Config()
    config.show_progress = False
    return kenlm.Model(str(small_arpa), config)


def direct_logprob(model: kenlm.Model, context: list[int], token: int) -> float:
    """ln P(token | context), from KenLM's own scores of text."""
    text = " ".join(map(str, [*context, token]))
    *_, (log10_prob, _, _) = model.full_scores(text, bos=False, eos=False)
    return float(log10_prob) * math.log(10)


def test_scores_are_natural_log_conditionals_of_kenlm(
    proxy: KenlmProxy, model: kenlm.Model
) -> None:
    contexts = [[], [7], [0, 7], [14, 0], [70, 21, 0, 14], [1, 2]]
    candidates = [0, 7, 14, 133, 1]
    logprobs, _ = proxy.expand([proxy.begin(context) for context in contexts], candidates)
    expected = [[direct_logprob(model, c, token) for token in candidates] for c in contexts]
    for row, expected_row in zip(logprobs, expected, strict=True):
        assert row == pytest.approx(expected_row, abs=1e-6)


def test_chained_states_score_whole_sequences(proxy: KenlmProxy, model: kenlm.Model) -> None:
    for sentence in read_corpus("small"):
        state, total = proxy.begin([]), 0.0
        for token in sentence:
            [[logprob]], [[state]] = proxy.expand([state], [token])
            total += logprob
        text = " ".join(map(str, sentence))
        assert total == pytest.approx(
            model.score(text, bos=False, eos=False) * math.log(10), abs=1e-4
        )


def test_states_after_expansion_are_states_after_the_longer_context(proxy: KenlmProxy) -> None:
    contexts, candidates = [[0, 7], [14, 0]], [0, 7, 21]
    _, states = proxy.expand([proxy.begin(context) for context in contexts], candidates)
    expected = [[proxy.begin([*context, token]) for token in candidates] for context in contexts]
    assert states == expected
    assert [list(map(hash, row)) for row in states] == [list(map(hash, row)) for row in expected]


def test_only_the_last_tokens_of_a_context_matter(proxy: KenlmProxy) -> None:
    assert proxy.begin([0, 14, 7, 0]) == proxy.begin([21, 7, 0])


def test_expanding_does_not_change_the_states_given(proxy: KenlmProxy) -> None:
    state = proxy.begin([0, 7])
    first = proxy.expand([state], [0, 7, 14])
    assert proxy.expand([state], [0, 7, 14]) == first


def test_no_states_and_no_candidates_give_empty_tables(proxy: KenlmProxy) -> None:
    assert proxy.expand([], [7]) == ([], [])
    assert proxy.expand([proxy.begin([7])], []) == ([[]], [[]])


def test_unseen_ids_score_as_unknown(proxy: KenlmProxy) -> None:
    [[first, second]], _ = proxy.expand([proxy.begin([0])], [1, 2])
    assert first == second < -1


@pytest.mark.parametrize("token", [-1, SMALL_VOCAB_SIZE])
def test_ids_outside_the_vocabulary_are_errors(proxy: KenlmProxy, token: int) -> None:
    with pytest.raises(NgramError, match=f"token id {token} is outside the vocabulary of 134 ids"):
        proxy.expand([proxy.begin([])], [7, token])


def test_text_and_quantised_binary_score_about_the_same(
    proxy: KenlmProxy, small_binary: Path
) -> None:
    binary: CausalProxy = KenlmProxy(small_binary, vocab_size=SMALL_VOCAB_SIZE)
    candidates = [0, 7, 14, 133]
    [expected], _ = proxy.expand([proxy.begin([0, 7])], candidates)
    [logprobs], _ = binary.expand([binary.begin([0, 7])], candidates)
    assert logprobs == pytest.approx(expected, abs=0.05)


def test_loading_prints_nothing(small_arpa: Path, capfd: pytest.CaptureFixture[str]) -> None:
    KenlmProxy(small_arpa, vocab_size=SMALL_VOCAB_SIZE)
    assert capfd.readouterr() == ("", "")


def test_without_kenlm_the_error_says_how_to_install_it(
    small_arpa: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(MissingDependencyError, match=r"diffuspec\[kenlm\].*without one"):
        KenlmProxy(small_arpa, vocab_size=SMALL_VOCAB_SIZE)


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
    "ARPA with a wrong count": (ARPA.replace(b"3=154", b"3=155"), "cannot be loaded by KenLM"),
    "ARPA with letters for a number": (
        ARPA.replace(b"-1.", b"one", 1),
        "cannot be loaded by KenLM",
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
    "order 1": (write_unigrams, "has order 1; KenLM loads orders 2 to 6"),
    "words of text": (write_text_model, "of its 19 words 17 are ids from 0 to 133"),
    "ids outside the vocabulary": (write_other_vocabulary, "of its 2 words 1 are ids"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_files_that_cannot_be_used_are_refused_by_name(
    content: bytes | Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.model"
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    with pytest.raises(NgramError, match=f"bad.model.*({message})"):
        KenlmProxy(path, vocab_size=SMALL_VOCAB_SIZE)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NgramError, match=r"absent\.arpa cannot be read: No such file"):
        KenlmProxy(tmp_path / "absent.arpa", vocab_size=SMALL_VOCAB_SIZE)


def test_a_binary_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.bin"
    for size in range(0, len(BINARY), 37):
        path.write_bytes(BINARY[:size])
        with pytest.raises(NgramError):
            KenlmProxy(path, vocab_size=SMALL_VOCAB_SIZE)
