import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffuspec.bench.systems.engine_system import EngineSystem
from diffuspec.core.config import EngineConfig
from diffuspec.pairs import PAIRS, parse_config
from tests.bench.conftest import write_lines
from tests.cli.conftest import printed


@pytest.fixture
def embedded(pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a random pair and two families of questions stand for the embedded ones."""

    def config(**_: object) -> EngineConfig:
        target, drafter = ({"path": path, "device": "cpu"} for path in pair)
        return parse_config({"target": target, "drafter": drafter})

    questions = [
        {"question_id": 1, "category": "qa", "turns": ["Who?"]},
        {"question_id": 2, "category": "qa", "turns": ["What?"]},
        {"question_id": 3, "category": "math_reasoning", "turns": ["One and\none?", "And one?"]},
    ]
    path = write_lines(tmp_path / "questions.jsonl", questions)
    tiny = replace(PAIRS["tiny"], load_config=config, questions=path)
    monkeypatch.setitem(PAIRS, "tiny", tiny)


@pytest.mark.usefixtures("embedded")
def test_a_line_per_family_and_the_same_tokens(diffuspec):
    said = printed(diffuspec("demo", "--repeats", "1", "--max-tokens", "12"))
    assert said.startswith("> One and\none?\n")
    figures = r"(\d+) +(\d+) +\d+\.\d\dx +\d+\.\d\d +(yes|NO)"
    for start in ("qa +Who\\?", "math_reasoning +One and one\\?", "all"):
        [row] = re.findall(rf"^ *{start} +{figures} *$", said, re.MULTILINE)
        plain_speed, drafted_speed, is_same = row
        assert int(plain_speed) > 0 and int(drafted_speed) > 0 and is_same == "yes"


@pytest.mark.usefixtures("embedded")
def test_other_tokens_are_a_failure(diffuspec, monkeypatch):
    answer = EngineSystem.answer

    def wrong(system: EngineSystem, prompt_ids: Any, max_tokens: int) -> Any:
        shorter = max_tokens - (system.name != "plain")
        return answer(system, prompt_ids, shorter)

    monkeypatch.setattr(EngineSystem, "answer", wrong)
    result = diffuspec("demo", "--repeats", "1", "--max-tokens", "4")
    assert result.exit_code == 1 and "NO" in result.stdout
