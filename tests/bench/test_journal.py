"""Answers on disk: written one by one, read back whole, refused where they are of another run."""

from pathlib import Path

import pytest

from diffuspec.bench.journal import Journal
from diffuspec.bench.run import Record
from diffuspec.core.errors import ConfigError
from diffuspec.core.types import StepStats
from tests.bench.conftest import make_record

PLAN = {"systems": ["plain"], "max_tokens": 8}
STEP = StepStats(4, 4, 2, 3, 4, 0.25, 0.5, 0.75, 1.5, fallback="drafter_error")
RECORDS = [
    make_record("plain", (1, 2), 0.5, question_id=7, turn=1),
    make_record("pld", (1, 2), 0.25, steps=(STEP,), forward_seconds=0.125, repeat=1),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j"


def write(path: Path, *records: Record) -> None:
    journal = Journal(path, PLAN)
    for record in records:
        journal.add(record)
    journal.close()


def test_answers_are_read_back_as_they_were(path):
    write(path, *RECORDS)
    again = Journal(path, PLAN, resume=True)
    again.close()
    assert list(again.records.values()) == RECORDS


def test_without_resume_a_run_begins_anew(path):
    write(path, RECORDS[0])
    again = Journal(path, PLAN)
    again.close()
    assert not again.records and len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("num_lost", [1, 20])
def test_a_line_that_was_being_written_is_asked_again(num_lost, path):
    write(path, *RECORDS)
    data = path.read_bytes()
    path.write_bytes(data[:-num_lost])
    again = Journal(path, PLAN, resume=True)
    assert list(again.records.values()) == RECORDS[:1]
    again.add(RECORDS[1])
    again.close()
    assert path.read_bytes() == data


def test_an_answer_is_written_once(path):
    write(path, RECORDS[0], RECORDS[0])
    assert len(path.read_text().splitlines()) == 2


def test_answers_of_another_run_are_refused_with_what_differs(path):
    Journal(path, PLAN).close()
    with pytest.raises(ConfigError, match="is of a run that differs in max tokens; choose"):
        Journal(path, {**PLAN, "max_tokens": 9}, resume=True)
    path.write_text("nonsense\n")
    with pytest.raises(ConfigError, match="is no journal of a run"):
        Journal(path, PLAN, resume=True)
