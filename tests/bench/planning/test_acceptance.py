"""Acceptance of planned drafts: typed in, and recorded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffuspec.algorithm.draft_tree import follow, validate
from diffuspec.bench.planning.acceptance import (
    NOT_LISTED,
    PAPER_DRAFT_TOKENS,
    RecordedAnswer,
    RecordedDraft,
    Recording,
    acceptance_length,
    read_recording,
    typed_regime,
    with_drafts,
    write_recording,
)
from diffuspec.bench.planning.costs import SHIPPED
from diffuspec.bench.planning.traffic import make_answers
from diffuspec.core.errors import ConfigError

# A root with two children; the second is right, and so is its child.
TREE = RecordedDraft((-1, -1, 1, 0), (-0.25, -1.5, -0.5, -0.5), (1, 2), 0)
WRONG = RecordedDraft((-1,), (-1.0,), (), NOT_LISTED)
RECORDING = Recording("tiny", "a test", ("qa", "rag"), ((TREE, WRONG), (WRONG,)))


def answer(recording: Recording = RECORDING) -> RecordedAnswer:
    return with_drafts(make_answers(typed_regime(1.0), 2)[0], recording)


@pytest.mark.parametrize("length", [1.5, 3.5, 6.99, 15.0])
def test_typed_acceptance_is_what_long_drafts_have(length):
    answers = make_answers(typed_regime(length), 60)
    reached = acceptance_length(answers, PAPER_DRAFT_TOKENS, PAPER_DRAFT_TOKENS)
    assert reached == pytest.approx(length, rel=0.08)


def test_an_acceptance_of_one_accepts_nothing():
    assert acceptance_length(make_answers(typed_regime(1.0), 8), 8, 8) == 1.0


@pytest.mark.parametrize("length", [0.5, 31.0, float("nan")])
def test_an_impossible_acceptance_is_refused(length):
    with pytest.raises(ConfigError, match="must be from 1 to 30"):
        typed_regime(length)


def test_recorded_drafts_are_trees_whose_right_part_is_accepted():
    own = answer().own
    guess = answer().guess(0, 8, 8)
    validate(guess.tree)
    assert guess.tree.parents == TREE.parents
    assert follow(guess.tree, own) == [1, 2]
    assert own[2] in [token for token, _ in guess.alternatives[2 + 1]], "the bonus is listed"


def test_a_shorter_draft_is_the_leading_part_of_a_recorded_one():
    guess = answer().guess(0, 1, 8)
    assert guess.tree.parents == (-1, -1)
    assert guess.confidences == (-0.25, -1.5)
    assert answer().guess(0, 8, 1).tree.num_nodes == 1
    cut_off = [token for token, _ in guess.alternatives[1 + 1]]
    assert answer().own[1] in cut_off, "the target's token is an alternative where it was cut off"


def test_a_recording_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "recording.jsonl"
    write_recording(path, RECORDING)
    assert read_recording(path) == RECORDING


@pytest.mark.parametrize("text", ["", "{}", '{"drafter": "a", "source": "b"}', "no JSON"])
def test_what_is_no_recording_is_refused(tmp_path, text):
    path = tmp_path / "recording.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="recording"):
        read_recording(path)


def test_a_broken_draft_is_refused(tmp_path):
    path = tmp_path / "recording.jsonl"
    bad = replace(RECORDING, answers=((TREE._replace(parents=(0, -1, 1, 0)),), (WRONG,)))
    write_recording(path, bad)
    with pytest.raises(ConfigError, match="not a tree"):
        read_recording(path)


def test_families_are_chosen_by_name():
    assert RECORDING.of_family("rag").answers == ((WRONG,),)
    with pytest.raises(ConfigError, match="must be one of qa, rag"):
        RECORDING.of_family("code")


@pytest.mark.parametrize("pair", ["tiny", "smollm2"])
def test_shipped_recordings_replay(pair):
    recording = read_recording(SHIPPED / f"{pair}.jsonl")
    answers = [answer(recording)]
    assert 1 < acceptance_length(answers, 4, 8) <= acceptance_length(answers, 20, 32)
