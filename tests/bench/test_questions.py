"""Reading question files."""

import json
from typing import Any

import pytest

from diffuspec.bench.questions import Question, first_per_family, load_questions
from diffuspec.core.errors import ConfigError
from tests.bench.conftest import write_lines


def line(**fields: Any) -> dict[str, Any]:
    return {"question_id": 1, "category": "qa", "turns": ["Who?"]} | fields


def test_a_file_in_spec_bench_format_is_read(tmp_path):
    lines = [
        line(question_id=81, category="writing", turns=["Write.", "Again."]),
        line(question_id=481, category="rag", reference=[["yes", "Yes."]]),
        line(question_id=161, category="translation", reference=["Good."]),
    ]
    assert load_questions(write_lines(tmp_path / "q.jsonl", lines)) == [
        Question(81, "writing", ("Write.", "Again.")),
        Question(481, "rag", ("Who?",), (("yes", "Yes."),)),
        Question(161, "translation", ("Who?",), (("Good.",),)),
    ]


def test_blank_lines_and_a_byte_order_mark_are_no_questions(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text("\ufeff" + json.dumps(line()) + "\r\n\n  \n", encoding="utf-8")
    assert len(load_questions(path)) == 1


def test_a_line_of_vicunas_file_has_one_turn(tmp_path):
    lines = [{"question_id": 1, "text": "How?", "category": "generic"}]
    assert load_questions(write_lines(tmp_path / "q.jsonl", lines)) == [
        Question(1, "generic", ("How?",))
    ]


@pytest.mark.parametrize(
    ("category", "family"),
    [
        ("writing", "mt_bench"),
        ("humanities", "mt_bench"),
        ("math", "mt_bench"),
        ("math_reasoning", "math_reasoning"),
        ("rag", "rag"),
        ("code", "code"),
    ],
)
def test_the_eight_mt_bench_categories_are_one_family(category, family):
    assert Question(1, category, ("?",)).family == family


def test_a_limit_holds_per_family():
    questions = [
        Question(i, category, ("?",))
        for i, category in enumerate(["writing", "qa", "coding", "qa", "stem"])
    ]
    assert [q.question_id for q in first_per_family(questions, 2)] == [0, 1, 2, 3]
    assert first_per_family(questions, None) == questions


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "not JSON"),
        ("[" * 20_000, "not JSON"),
        ("[1]", r"must be a JSON object, got \[1\]"),
        (line(turn=["?"]), 'unknown key "turn"'),
        ({"category": "qa", "turns": ["?"]}, "question_id is missing"),
        (line(question_id="1"), 'question_id must be an integer from 0 on, got "1"'),
        (line(question_id=True), "question_id must be an integer"),
        (line(question_id=-1), "question_id must be an integer"),
        (line(category=" "), "category must be a text that is not blank"),
        (line(category="c" * 65), "category must have 64 characters at most, got 65"),
        (line(turns=[]), "turns must be a list of texts, at least one"),
        (line(turns="Who?"), "turns must be a list of texts"),
        (line(turns=["Who?", 3]), r"turns\[1\] must be a text that is not blank, got 3"),
        (line(turns=["?"] * 17), "turns must have 16 texts at most, got 17"),
        (line(turns=["x" * 200_001]), r"turns\[0\] must have 200000 characters at most"),
        (line(turns=["\ud800"]), "half of a surrogate pair"),
        (line(reference="yes"), 'reference must be a list, got "yes"'),
        (line(reference=["a", "b"]), "reference has 2 answers for 1 turns"),
        (line(reference=[[]]), r"reference\[0\] must be a text or a list of texts, got \[\]"),
        (line(reference=[[3]]), r"reference\[0\] must be a text or a list of texts"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(bad, message, tmp_path):
    path = tmp_path / "q.jsonl"
    text = bad if isinstance(bad, str) else json.dumps(bad)
    path.write_text(f"{json.dumps(line(question_id=7))}\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"q\.jsonl, line 2: .*{message}"):
        load_questions(path)


def test_a_number_used_twice_names_both_lines(tmp_path):
    path = write_lines(tmp_path / "q.jsonl", [line(), line()])
    with pytest.raises(ConfigError, match=r"line 2: question_id 1 was used in line 1 already"):
        load_questions(path)


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes(json.dumps(line()).encode() + b"\n\xff\n")
    with pytest.raises(ConfigError, match="line 2: not UTF-8 text"):
        load_questions(path)


def test_a_file_that_is_missing_empty_or_a_folder_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read questions from .*none\.jsonl: No such"):
        load_questions(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_questions(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ConfigError, match="holds no questions"):
        load_questions(tmp_path / "empty.jsonl")
