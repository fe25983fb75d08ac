"""What a target is asked, in rounds that follow from their numbers alone."""

import json
from collections.abc import Iterator

import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SamplingParams
from diffuspec.pairs.engine import Engine
from diffuspec.pairs.factory import answers
from diffuspec.pairs.factory.answer_files import AnswerFiles
from diffuspec.pairs.factory.answers import write_rounds
from diffuspec.pairs.factory.examples import ExampleFiles
from diffuspec.pairs.factory.prompts import Passages, Rounds

TEXT = "The town has a small library beside the river, and it is open every day of the week."
SHORT = SamplingParams(max_tokens=4)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(pair="tiny", drafter="none") as engine:
        yield engine


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Passages:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "town.md").write_text(f"# A town\n\n{TEXT}\n\n{TEXT}\n\n| a | table |\n")
    return Passages(folder)


def test_rounds_ask_questions_of_many_kinds_and_follow_from_their_number(engine, passages):
    rounds = Rounds(engine, 10, passages, seed=0)
    first = [one.chat for one in rounds.answers(0, SHORT)]
    assert [one.chat for one in Rounds(engine, 10, passages, 0).answers(0, SHORT)] == first
    assert [one.chat for one in rounds.answers(1, SHORT)] != first
    said = [chat[-1]["content"] for chat in first]
    assert any(TEXT in text for text in said) and any(TEXT not in text for text in said)
    assert all(chat[-1]["role"] == "user" for chat in first)


def test_answers_that_ended_are_followed_by_second_questions(engine):
    answered = list(Rounds(engine, 12, None, seed=0).answers(0, SamplingParams(max_tokens=16)))
    turns = [len(one.chat) for one in answered]
    assert {1, 3} == set(turns)
    followed = {one.answer.text for one in answered if len(one.chat) == 1}
    assert all(one.chat[1]["content"] in followed for one in answered if len(one.chat) == 3)


def test_given_prompts_come_first_and_a_folder_is_trained_on(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "MAX_ANSWER_TOKENS", 4)
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "answers"
    prompts.write_text("".join(json.dumps({"prompt": [60 + i]}) + "\n" for i in range(3)))
    write_rounds(engine, AnswerFiles(out, 2), 3, [prompts])
    files = ExampleFiles([out], 100)
    files.read_new()
    assert [example.token_ids[0] for example in files.training] == [60, 61, 62]
    write_rounds(engine, AnswerFiles(out, 2), 4, [prompts])
    files.read_new()
    assert len(files.training) > 3


def test_a_folder_without_prose_is_refused(tmp_path):
    (tmp_path / "table.md").write_text("| a | table |\n")
    with pytest.raises(ConfigError, match="with a paragraph of prose"):
        Passages(tmp_path)
