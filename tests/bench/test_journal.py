"""Answers on disk: written one by one, read back whole, refused where they are of another run."""

from pathlib import Path

import pytest

from diffuspec.bench.journal import Journal
from diffuspec.core.errors import ConfigError
from diffuspec.core.types import StepStats
from tests.bench.conftest import make_record

PLAN = {"systems": ["plain"], "max_tokens": 8}
STEP = StepStats(4, 4, 2, 3, 4, 0.25, 0.5, 0.75, 1.5, fallback="drafter_error")
RECORDS = [
    make_record("plain", (1, 2), 0.5, question_id=7, turn=1),
    make_record("pld", (1, 2), 0.25, steps=(STEP,), forward_seconds=0.125, repeat=1),
]


def test_answers_are_read_back_as_they_were(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", PLAN)
    for record in RECORDS:
        journal.add(record)
    journal.close()
    again = Journal(tmp_path / "j", PLAN, resume=True)
    again.close()
    assert list(again.records.values()) == RECORDS


def test_without_resume_a_run_begins_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", PLAN)
    journal.add(RECORDS[0])
    journal.close()
    again = Journal(tmp_path / "j", PLAN)
    again.close()
    assert not again.records and len((tmp_path / "j").read_text().splitlines()) == 1


@pytest.mark.parametrize("num_lost", [1, 20])
def test_a_line_that_was_being_written_is_asked_again(num_lost: int, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", PLAN)
    for record in RECORDS:
        journal.add(record)
    journal.close()
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-num_lost])
    again = Journal(tmp_path / "j", PLAN, resume=True)
    assert list(again.records.values()) == RECORDS[:1]
    again.add(RECORDS[1])
    again.close()
    assert (tmp_path / "j").read_bytes() == data


def test_an_answer_is_written_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", PLAN)
    journal.add(RECORDS[0])
    journal.add(RECORDS[0])
    journal.close()
    assert len((tmp_path / "j").read_text().splitlines()) == 2


def test_answers_of_another_run_are_refused_with_what_differs(tmp_path: Path) -> None:
    Journal(tmp_path / "j", PLAN).close()
    with pytest.raises(ConfigError, match="is of a run with another max tokens; choose another"):
        Journal(tmp_path / "j", {**PLAN, "max_tokens": 9}, resume=True)
    (tmp_path / "j").write_text("nonsense\n")
    with pytest.raises(ConfigError, match="is no journal of a run"):
        Journal(tmp_path / "j", PLAN, resume=True)
