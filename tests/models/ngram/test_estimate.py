"""The estimator and its ARPA files, against `lmplz` and against what makes them valid."""

import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.core.errors import NgramError
from diffuspec.models.ngram.arpa import NgramModel, write_arpa
from diffuspec.models.ngram.estimate import estimate
from diffuspec.models.ngram.ngram_proxy import NgramProxy
from tests.models.ngram.conftest import read_corpus, read_reference_arpa

BOS, EOS, UNKNOWN = 100, 101, 102  # ids beyond those of the corpora
corpora = st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=12).filter(
    lambda sentences: max(map(len, sentences)) >= 2
)


def parse_arpa(text: str) -> dict[str, tuple[float, float]]:
    """The numbers of each n-gram; no back-off reads as 0."""
    entries = (line.split("\t") for line in text.splitlines() if "\t" in line)
    return {entry[1]: (float(entry[0]), float((*entry, "0")[2])) for entry in entries}


def arpa_text(model: NgramModel) -> str:
    with tempfile.TemporaryDirectory() as folder:
        write_arpa(model, Path(folder) / "model.arpa")
        return (Path(folder) / "model.arpa").read_text()


def load(model: NgramModel, folder: Path) -> NgramProxy:
    """The model, with ids for <s>, </s> and <unk>."""
    text = arpa_text(model).replace("<s>", str(BOS)).replace("</s>", str(EOS))
    (folder / "model.arpa").write_text(text)
    return NgramProxy(folder / "model.arpa", vocab_size=UNKNOWN + 1)


@pytest.mark.parametrize(
    ("name", "order", "discount_fallback"),
    [
        ("small", 1, (0.5, 1.0, 1.5)),
        ("small", 3, (0.5, 1.0, 1.5)),
        ("small", 5, (0.5, 1.0, 1.5)),
        ("zipf", 3, None),
    ],
)
def test_estimates_equal_those_of_lmplz(
    name: str, order: int, discount_fallback: tuple[float, float, float] | None
) -> None:
    model = estimate(read_corpus(name), order=order, discount_fallback=discount_fallback)
    ours, theirs = arpa_text(model), read_reference_arpa(name, order)
    assert ours.split("\\1-grams:")[0] == theirs.split("\\1-grams:")[0]
    ours_by_ngram, theirs_by_ngram = parse_arpa(ours), parse_arpa(theirs)
    assert list(ours_by_ngram) == list(theirs_by_ngram)
    difference = np.array(list(ours_by_ngram.values())) - np.array(list(theirs_by_ngram.values()))
    assert np.abs(difference).max() < 2e-6


@settings(max_examples=40, deadline=None)
@given(corpora, st.integers(2, 4))
def test_probabilities_after_every_history_sum_to_one(
    sentences: list[list[int]], order: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = load(estimate(sentences, order=order), Path(folder))
    ids = sorted({token for sentence in sentences for token in sentence})
    for history in itertools.product([BOS, UNKNOWN, *ids], repeat=2):
        [logprobs], _ = model.expand([model.begin(history)], [*ids, EOS, UNKNOWN])
        assert sum(map(math.exp, logprobs)) == pytest.approx(1, abs=1e-5)


@settings(max_examples=40, deadline=None)
@given(corpora, st.integers(2, 4))
def test_every_suffix_and_every_context_of_an_ngram_is_listed(
    sentences: list[list[int]], order: int
) -> None:
    tables = estimate(sentences, order=order).tables
    ngrams = [{tuple(row) for row in table.words.tolist()} for table in tables]
    for shorter, longer in itertools.pairwise(ngrams):
        assert {ngram[1:] for ngram in longer} <= shorter
        assert {ngram[:-1] for ngram in longer} <= shorter


@settings(max_examples=20, deadline=None)
@given(corpora)
def test_the_same_corpus_gives_the_same_bytes(sentences: list[list[int]]) -> None:
    once, again = estimate(sentences), estimate(tuple(sentence) for sentence in sentences)
    assert arpa_text(once) == arpa_text(again)


def test_a_mass_of_zero_is_written_as_a_number(tmp_path: Path) -> None:
    model = estimate([[1, 2, 3], [1, 2, 3]], discount_fallback=(0.0, 0.0, 0.0))
    proxy = load(model, tmp_path)
    assert proxy.expand([proxy.begin([1, 2])], [3])[0] == [[pytest.approx(0, abs=1e-5)]]


def test_progress_ends_at_one_in_every_stage(tmp_path: Path) -> None:
    heard: list[tuple[str, float]] = []
    model = estimate(read_corpus("small"), on_progress=lambda *args: heard.append(args))
    write_arpa(model, tmp_path / "model.arpa", on_progress=lambda *args: heard.append(args))
    assert list(dict(heard)) == ["reading", "counting", "smoothing", "writing"]
    assert set(dict(heard).values()) == {1.0}
    assert heard == sorted(heard, key=lambda item: (list(dict(heard)).index(item[0]), item[1]))


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "model.arpa"
    path.write_text("old")

    def interrupt(stage: str, done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_arpa(estimate([[1, 2]]), path, on_progress=interrupt)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("sentences", "order", "message"),
    [
        ([], 3, "corpus is empty"),
        ([[]], 3, "no sentence has 1 tokens or more, so there are no 3-grams"),
        ([[1, 2]], 7, "order must be 1 to 6, got 7"),
        ([[1, 2]], 0, "order must be 1 to 6, got 0"),
        ([[1, -1]], 3, "must be 0 to 16777215, got -1"),
        ([[1, 2**24]], 3, "must be 0 to 16777215, got 16777216"),
        ([[1, 2**70]], 3, "sentence 0 is not a sequence of ids"),
        ([[1], [1.5]], 3, "sentence 1 is not a sequence of ids"),
        (["12"], 3, "sentence 0 is not a sequence of ids"),
        ([3], 3, "sentence 0 is not a sequence of ids"),
    ],
)
def test_an_unusable_corpus_is_an_error(
    sentences: list[list[int]], order: int, message: str
) -> None:
    with pytest.raises(NgramError, match=message):
        estimate(sentences, order=order)


def test_discounts_that_cannot_be_estimated_are_an_error_without_a_fallback() -> None:
    with pytest.raises(NgramError, match="discounts of 1-grams"):
        estimate(read_corpus("small"), discount_fallback=None)


def test_ids_keep_their_numbers_and_special_words_stand_first() -> None:
    model = estimate([[151664, 0, 151664]])
    assert model.vocabulary == ["<unk>", "<s>", "</s>", "151664", "0"]
    assert model.order == 3
    assert math.isclose(10 ** model.tables[0].log10_probs[1], 1)  # <s> can be scored, for free
