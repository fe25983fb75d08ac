"""What is promised about the corpus: one right answer, true sums, nothing held out leaks."""

import json
import random
import re
from itertools import islice

import pytest

from recipes.tiny.corpus import conversations as corpus
from recipes.tiny.corpus.families import lexicon, source

SYNTHETIC = tuple(family for family in corpus.FAMILIES if family != "code")
PERFORM = {"+": int.__add__, "-": int.__sub__, "x": int.__mul__}
NOT_CAPITALISED_IN_PASSAGES = {"On", "The", "So", "It", "In", "Before"}


def drawn(family: str, count: int, size: float = 1.0, seed: int = 3) -> list[corpus.Conversation]:
    rng = random.Random(seed)
    return [corpus.conversation(family, rng, size) for _ in range(count)]


def mean_length(conversations: list[corpus.Conversation]) -> float:
    return sum(len(" ".join(c.turns + c.answers)) for c in conversations) / len(conversations)


@pytest.mark.parametrize("family", corpus.FAMILIES)
def test_the_same_seed_draws_the_same_conversations(family):
    assert drawn(family, 50) == drawn(family, 50)
    assert drawn(family, 50) != drawn(family, 50, seed=4)


@pytest.mark.parametrize("family", SYNTHETIC)
def test_a_question_has_one_right_answer(family):
    answers: dict[tuple[str, ...], tuple[str, ...]] = {}
    for one in drawn(family, 3000, size=0.0) + drawn(family, 3000):
        assert answers.setdefault(one.turns, one.answers) == one.answers


@pytest.mark.parametrize("family", corpus.FAMILIES)
def test_every_template_is_filled_in(family):
    for one in drawn(family, 500):
        texts = one.turns + one.answers
        assert all(text and text == text.strip("\n") for text in texts)
        assert family == "code" or not re.search(r"[{}]|  ", "".join(texts))


@pytest.mark.parametrize("family", [f for f in corpus.FAMILIES if f != "qa"])
def test_size_bounds_the_length(family):
    assert mean_length(drawn(family, 400, size=0.0)) < mean_length(drawn(family, 400, size=1.0))


def test_only_two_turn_chats_have_two_turns():
    for family in corpus.FAMILIES:
        assert {len(c.turns) for c in drawn(family, 100)} == {2 if family == "mt_bench" else 1}


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


@pytest.mark.parametrize("family", ["summarization", "rag"])
def test_names_and_numbers_of_the_answer_come_from_the_text(family):
    for one in drawn(family, 1000):
        values = set(re.findall(r"\b[A-Z]\w+|\d+", one.answers[0])) - NOT_CAPITALISED_IN_PASSAGES
        assert values
        assert values <= set(re.findall(r"\w+", one.turns[0])), one


def test_an_answer_quotes_its_passage():
    for one in drawn("rag", 1000):
        quoted = one.answers[0].partition(" So ")[0]
        assert re.search(rf"Passage \d: {re.escape(quoted)}", one.turns[0])


def noun(german: str) -> lexicon.Noun:
    nouns = lexicon.PEOPLE + lexicon.ANIMALS + lexicon.GOODS + lexicon.DRINKS
    return next(one for one in nouns if one.german == german)


@pytest.mark.parametrize(
    ("german", "adjective", "nominative", "accusative"),
    [
        ("Tisch", "", "der Tisch", "den Tisch"),
        ("Tisch", "alt", "der alte Tisch", "den alten Tisch"),
        ("Bäcker", "müde", "der müde Bäcker", "den müden Bäcker"),
        ("Lampe", "neu", "die neue Lampe", "die neue Lampe"),
        ("Milch", "", "die Milch", "die Milch"),
        ("Buch", "kurz", "das kurze Buch", "das kurze Buch"),
        ("Mädchen", "", "das Mädchen", "das Mädchen"),
        ("Käse", "frisch", "der frische Käse", "den frischen Käse"),
    ],
)
def test_german_articles_and_endings(german, adjective, nominative, accusative):
    assert noun(german).nominative(adjective) == nominative
    assert noun(german).accusative(adjective) == accusative


def test_the_lexicon_maps_one_to_one():
    nouns = lexicon.PEOPLE + lexicon.ANIMALS + lexicon.GOODS + lexicon.DRINKS
    pairs = {(one.german, one.english) for one in nouns}
    pairs |= {*lexicon.OBJECTS, *lexicon.ACTIONS, *lexicon.PLACES, *lexicon.TIMES, *lexicon.BEING}
    pairs |= {pair for one in nouns for pair in lexicon.qualities(one)}
    assert len({german for german, _ in pairs}) == len({english for _, english in pairs})
    assert len({german for german, _ in pairs}) == len(pairs)


def test_numbered_lists_keep_the_order_of_the_words():
    chats = [c for c in drawn("mt_bench", 2000) if "with their numbers" in c.answers[0]]
    assert chats
    for chat in chats:
        given = chat.turns[0].split(": ")[1].rstrip(".").split(", ")
        numbered = re.findall(r"(\d)\. (\w+)", chat.answers[0])
        assert numbered == [(str(n), word) for n, word in enumerate(given, start=1)]


def test_three_people_are_ordered_by_the_comparisons():
    chats = [c for c in drawn("mt_bench", 2000) if re.search(r" than .*Who is the ", c.turns[0])]
    assert chats
    for chat in chats:
        pairs = dict(re.findall(r"(\w+) is \w+ than (\w+)", chat.turns[0]))
        (first,) = set(pairs) - set(pairs.values())
        names = [first, pairs[first], pairs[pairs[first]]]
        assert f" is {', '.join(names)}." in chat.answers[0]


def test_facts_are_true():
    answers = {one.answers[0].split(". ")[0] for one in drawn("qa", 8000)}
    assert {
        "The capital of France is Paris",
        "Canberra is the capital of Australia",
        "The currency of Japan is the yen",
        "The third planet from the sun is Earth",
        "The month after December is January",
        "The chemical symbol of gold is Au",
        'The opposite of "hot" is "cold"',
        "A young cow is called a calf",
    } <= answers
