"""What is promised about the corpus: one right answer, true sums, nothing held out leaks."""

import hashlib
import json
import random
import re
from itertools import islice

import pytest

from recipes.tiny.corpus import conversations as corpus
from recipes.tiny.corpus.families import source

SYNTHETIC = tuple(family for family in corpus.FAMILIES if family != "code")
DIGESTS = {
    "mt_bench": "74c823c64b9e58c8",
    "translation": "0d8cac8a6901ccde",
    "summarization": "1c236e7699201cb6",
    "qa": "cec0f3b887f3c9b4",
    "math_reasoning": "db124960093c8dd7",
    "rag": "80d6443c9ff6a2a9",
}
PERFORM = {"+": int.__add__, "-": int.__sub__, "x": int.__mul__}


def drawn(family: str, count: int, size: float = 1.0, seed: int = 3) -> list[corpus.Conversation]:
    rng = random.Random(seed)
    return [corpus.conversation(family, rng, size) for _ in range(count)]


@pytest.mark.parametrize("family", SYNTHETIC)
def test_the_corpus_draws_what_it_has_always_drawn(family):
    text = repr(drawn(family, 1000, size=0.0) + drawn(family, 1000))
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == DIGESTS[family]


@pytest.mark.parametrize("family", SYNTHETIC)
def test_a_question_has_one_right_answer(family):
    answers: dict[tuple[str, ...], tuple[str, ...]] = {}
    for one in drawn(family, 3000, size=0.0) + drawn(family, 3000):
        assert answers.setdefault(one.turns, one.answers) == one.answers


def test_unknown_families_and_sizes_are_refused():
    with pytest.raises(ValueError, match="'poems'"):
        corpus.conversation("poems", random.Random(0))
    with pytest.raises(ValueError, match=r"1\.5"):
        corpus.conversation("qa", random.Random(0), size=1.5)


def test_training_never_sees_held_out_conversations():
    held_out = {tuple(question.turns) for question in corpus.held_out_questions(40)}
    trained = list(islice(corpus.training_conversations(seed=5), 20_000))
    assert not any(corpus.is_held_out(one) for one in trained)
    assert held_out.isdisjoint(one.turns for one in trained)
    assert {one.family for one in trained} == set(corpus.FAMILIES)


def test_training_repeats_by_seed_and_follows_the_weights():
    weights = {"qa": 3.0, "rag": 1.0}
    first = list(islice(corpus.training_conversations(1, weights=weights), 400))
    assert first == list(islice(corpus.training_conversations(1, weights=weights), 400))
    shares = [one.family for one in first]
    assert set(shares) == set(weights)
    assert 250 < shares.count("qa") < 350


def test_code_is_held_out_by_module():
    excerpts = drawn("code", 2000)
    modules = {source.module_of(one) for one in excerpts}
    held_out = {source.module_of(one) for one in excerpts if corpus.is_held_out(one)}
    assert held_out == {name for name in modules if source.is_held_out_module(name)}
    assert 0 < len(held_out) < len(modules) / 4


def test_held_out_questions_are_distinct_and_cover_every_family():
    questions = corpus.held_out_questions(30)
    assert questions == corpus.held_out_questions(30)
    assert [question.question_id for question in questions] == list(range(1, len(questions) + 1))
    assert len({tuple(question.turns) for question in questions}) == len(questions)
    categories = [question.category for question in questions]
    assert {family: categories.count(family) for family in corpus.FAMILIES} == dict.fromkeys(
        corpus.FAMILIES, 30
    )


def test_questions_are_written_one_per_line(tmp_path):
    questions = corpus.held_out_questions(3)
    corpus.write_questions(questions, tmp_path / "questions.jsonl")
    lines = (tmp_path / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert [corpus.Question(**record) for record in records] == questions
    assert list(records[0]) == ["question_id", "category", "turns", "reference"]


def test_too_many_held_out_questions_are_refused(monkeypatch):
    monkeypatch.setattr(corpus, "_MAX_DRAWS_PER_QUESTION", 1)  # not seconds of draws
    with pytest.raises(ValueError, match="held-out questions, asked for 1000"):
        corpus.held_out_questions(1000)


def test_worked_sums_are_right_and_follow_the_question():
    for one in drawn("math_reasoning", 2000):
        question, answer = one.turns[0], one.answers[0]
        sums = re.findall(r"(\d+) ([+x-]) (\d+) = (\d+) (\w+)", answer)
        start = re.search(r"(?:has|with|owns) (\d+) ", question)
        assert start is not None
        value = int(start[1])
        for left, sign, right, result, _ in sums:
            assert int(left) == value
            value = PERFORM[sign](value, int(right))
            assert 0 < value == int(result) <= 40
        assert answer.endswith(f"The answer is {value}.")
        told = [int(number) for number in re.findall(r"\d+", question)]
        assert told == [int(start[1]), *(int(right) for _, _, right, _, _ in sums)]
        assert 2 <= len(sums) <= 3
