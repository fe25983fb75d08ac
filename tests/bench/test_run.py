"""Interleaved runs with systems that answer as they are told."""

from collections.abc import Sequence

import pytest

from diffuspec.bench.questions import Question
from diffuspec.bench.run import (
    ChatCodec,
    RunSettings,
    find_mismatches,
    median_answers,
    run_questions,
    warm_up,
)
from diffuspec.core.errors import ConfigError
from tests.bench.conftest import FakeSystem, FakeTokenizer, make_record

SETTINGS = RunSettings(max_tokens=8, max_model_len=20)
CODEC = ChatCodec(FakeTokenizer())


def count_up(prompt: Sequence[int]) -> list[int]:
    return [prompt[-1] + 1, prompt[-1] + 2]


def make_systems(*names: str) -> tuple[list[FakeSystem], list[str]]:
    log: list[str] = []
    return [FakeSystem(name, count_up, log) for name in names], log


def test_the_order_rotates_from_question_to_question_and_repeat_to_repeat() -> None:
    systems, log = make_systems("plain", "b", "c")
    questions = [Question(1, "qa", ("1",)), Question(2, "qa", ("2",))]
    run_questions(systems, questions, CODEC, RunSettings(8, 20, num_repeats=2))
    assert "".join(name[0] for name in log) == "pbcbcpbcpcpb"


def test_a_second_turn_contains_the_first_answer() -> None:
    systems, log = make_systems("plain", "b")
    run = run_questions(systems, [Question(1, "qa", ("10", "20"))], CODEC, SETTINGS)
    assert log == ["plain", "b", "plain", "b"]
    assert systems[1].prompts == [[4, 10], [4, 10, 9, 11, 12, 4, 20]]
    assert [(r.system, r.turn, r.answer.token_ids) for r in run.records] == [
        ("plain", 0, (11, 12)),
        ("b", 0, (11, 12)),
        ("plain", 1, (21, 22)),
        ("b", 1, (21, 22)),
    ]


def test_all_systems_see_the_baselines_answer_even_if_theirs_differs() -> None:
    systems, log = make_systems("plain")
    systems.append(FakeSystem("wrong", lambda prompt: [0], log))
    run = run_questions(systems, [Question(1, "qa", ("10", "20"))], CODEC, SETTINGS)
    assert systems[1].prompts[1] == [4, 10, 9, 11, 12, 4, 20]
    assert len(find_mismatches(run.records)) == 2


def test_turns_that_do_not_fit_are_left_out_and_told() -> None:
    systems, _ = make_systems("plain", "b")
    questions = [
        Question(1, "qa", ("1 " * 30,)),
        Question(2, "qa", ("5", "1 " * 30, "6")),
        Question(3, "qa", ("7",)),
    ]
    run = run_questions(systems, questions, CODEC, SETTINGS)
    assert run.skipped == ((1, 0), (2, 1), (2, 2))
    assert {(r.question_id, r.turn) for r in run.records} == {(2, 0), (3, 0)}


def test_answers_are_cut_where_the_context_ends() -> None:
    systems = [FakeSystem("plain", lambda prompt: range(100), [])]
    run = run_questions(systems, [Question(1, "qa", ("1 " * 16,))], CODEC, SETTINGS)
    assert [len(record.answer.token_ids) for record in run.records] == [3]


def test_every_answer_is_announced() -> None:
    systems, _ = make_systems("plain", "b")
    seen: list[str] = []
    questions = [Question(1, "qa", ("1", "2"))]
    run_questions(systems, questions, CODEC, SETTINGS, lambda r: seen.append(r.system))
    assert seen == ["plain", "b", "plain", "b"]


def test_the_warm_up_takes_the_first_question_that_fits() -> None:
    systems, log = make_systems("plain", "b")
    questions = [Question(1, "qa", ("1 " * 30,)), Question(2, "qa", ("5",))]
    warm_up(systems, questions, CODEC, SETTINGS)
    assert log == ["plain", "b"]
    assert systems[0].prompts == [[4, 5]]
    with pytest.raises(ConfigError, match="no question fits into the target's context of 20"):
        warm_up(systems, questions[:1], CODEC, SETTINGS)


@pytest.mark.parametrize(
    ("theirs", "position"), [((1, 2, 4), 2), ((1, 2), 2), ((1, 2, 3, 4), 3), ((), 0)]
)
def test_tokens_that_differ_are_found(theirs: tuple[int, ...], position: int) -> None:
    records = [make_record("plain", (1, 2, 3)), make_record("paper", theirs, turn=0)]
    (mismatch,) = find_mismatches(records)
    assert (mismatch.system, mismatch.question_id, mismatch.position) == ("paper", 1, position)
    assert mismatch.fails("float32") and mismatch.fails("bfloat16")


def test_answers_are_compared_question_by_question_turn_by_turn_repeat_by_repeat() -> None:
    records = [
        make_record(system, (q, turn, repeat), question_id=q, turn=turn, repeat=repeat)
        for system in ("plain", "paper")
        for q in (1, 2)
        for turn in (0, 1)
        for repeat in (0, 1)
    ]
    assert find_mismatches(records) == []


@pytest.mark.parametrize(
    ("dtype", "fails"), [("float32", [True, False]), ("bfloat16", [False] * 2)]
)
def test_transformers_must_be_the_same_where_its_products_are(
    dtype: str, fails: list[bool]
) -> None:
    records = [make_record("plain", (1,)), make_record("transformers_greedy", (2,))]
    records.append(make_record("transformers_prompt_lookup", (2,)))
    assert [mismatch.fails(dtype) for mismatch in find_mismatches(records)] == fails


@pytest.mark.parametrize(("seconds", "median"), [((3, 1, 2), 2), ((4, 3, 1, 2), 2), ((5,), 5)])
def test_of_the_repeats_the_median_is_kept_whole(seconds: tuple[int, ...], median: int) -> None:
    records = [make_record(seconds=s, repeat=i) for i, s in enumerate(seconds)]
    (kept,) = median_answers(records)
    assert kept.answer.seconds == median
    assert kept.repeat == seconds.index(median)


def test_a_tokenizer_without_a_template_gets_the_texts_below_each_other() -> None:
    tokenizer = FakeTokenizer()
    tokenizer.chat_template = None
    codec = ChatCodec(tokenizer)
    messages = [{"role": "user", "content": "1 2"}, {"role": "assistant", "content": "3"}]
    assert codec.encode(messages) == [1, 2, 3]
