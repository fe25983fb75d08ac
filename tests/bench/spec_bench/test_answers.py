"""Answer files, read as Spec-Bench's speed.py and equal.py read them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diffuspec.bench.questions import Question
from diffuspec.bench.spec_bench.answers import write_answers
from diffuspec.bench.stats import compute_rows
from diffuspec.core.types import StepStats
from tests.bench.conftest import make_record

QUESTIONS = [Question(81, "writing", ("a", "b")), Question(321, "qa", ("c",))]
TURNS = ((81, 0, "mt_bench"), (81, 1, "mt_bench"), (321, 0, "qa"))


def decode(token_ids: Sequence[int]) -> str:
    return " ".join(map(str, token_ids))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with plain's answers of 4 tokens a turn, and pld's of 3 + 1."""
    steps = tuple(StepStats(4, 4, n - 1, n, 4) for n in (3, 0, 1))
    records = []
    for question_id, turn, family in TURNS:
        place: Any = {"question_id": question_id, "turn": turn, "family": family}
        records.append(make_record("plain", range(4), 2.0, **place))
        records.append(make_record("pld", range(4), 1.0, steps=steps, num_steps=2, **place))
        records.append(make_record("other", range(4), 1.0, num_steps=2, **place))
    write_answers(tmp_path / "answers", "smollm2", QUESTIONS, records, decode)
    rows = compute_rows(records, ("plain", "pld"))
    pld = next(row for row in rows if (row.system, row.family) == ("pld", "all"))
    assert (pld.spec_bench_speedup, pld.mean_acceptance_length) == (2, 2)
    return tmp_path / "answers"


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_question_is_a_line_with_spec_benchs_fields(folder: Path) -> None:
    first, second = read(folder / "pld.jsonl")
    assert set(first) == {
        "question_id", "category", "answer_id", "model_id", "choices", "tstamp"
    }  # fmt: skip
    assert (first["question_id"], first["category"]) == (81, "writing")
    assert first["model_id"] == "smollm2-pld"
    assert first["choices"] == [
        {
            "index": 0,
            "turns": ["0 1 2 3", "0 1 2 3"],
            "decoding_steps": [2, 2],
            "new_tokens": [4, 4],
            "wall_time": [1.0, 1.0],
            "accept_lengths": [3, 1, 3, 1],
        }
    ]
    assert (second["question_id"], second["choices"][0]["new_tokens"]) == (321, [4])


def test_its_own_arithmetic_gives_our_figures(folder: Path) -> None:
    own, base = read(folder / "pld.jsonl"), read(folder / "plain.jsonl")
    speeds = [sum(q["choices"][0]["new_tokens"]) / sum(q["choices"][0]["wall_time"]) for q in own]
    speeds_0 = [
        sum(q["choices"][0]["new_tokens"]) / sum(q["choices"][0]["wall_time"]) for q in base
    ]
    assert np.mean(speeds) / np.mean(speeds_0) == 2
    lengths = [n for question in own for n in question["choices"][0]["accept_lengths"]]
    assert np.mean(lengths) == 2
    assert {n for question in base for n in question["choices"][0]["accept_lengths"]} == {1}


def test_a_system_whose_steps_are_not_known_has_no_file(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["plain.jsonl", "pld.jsonl"]
