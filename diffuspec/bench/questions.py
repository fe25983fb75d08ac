"""Question files in Spec-Bench's format, one JSON object per line, and the order of asking.

    {"question_id": 481, "category": "rag", "turns": ["..."], "reference": [["yes", "Yes."]]}

reference is optional: per turn the right answer, or a list of right answers. Instead of turns a
line may have `text`, a single turn, as in Vicuna's own file. Reading is strict; every error names
the file and the line.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from diffuspec.core.errors import ConfigError

SPEC_BENCH_FAMILIES = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH_CATEGORIES = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)

MAX_FILE_BYTES = 256 * 2**20
MAX_QUESTIONS = 100_000
MAX_TURNS = 16
MAX_TURN_CHARACTERS = 200_000
MAX_CATEGORY_CHARACTERS = 64

T = TypeVar("T")

_REQUIRED = ("question_id", "category", "turns")
_OPTIONAL = ("reference",)


@dataclass(frozen=True, slots=True)
class Question:
    """The user's side of a conversation."""

    question_id: int
    category: str
    turns: tuple[str, ...]  # at least one turn
    reference: tuple[tuple[str, ...], ...] = ()  # right answers per turn, or none at all

    @property
    def family(self) -> str:
        """Its task; Spec-Bench's eight MT-Bench categories count as one task."""
        return "mt_bench" if self.category in MT_BENCH_CATEGORIES else self.category


def load_questions(path: Path) -> list[Question]:
    """Read a question file. Raises ConfigError."""
    questions: list[Question] = []
    first_lines: dict[int, int] = {}
    for number, line in _lines(path):
        try:
            question = _question(_parse(line))
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}") from error
        if (first := first_lines.setdefault(question.question_id, number)) != number:
            raise ConfigError(
                f"{path}, line {number}: question_id {question.question_id} was used in line"
                f" {first} already"
            )
        questions.append(question)
        if len(questions) > MAX_QUESTIONS:
            raise ConfigError(f"{path} has more than {MAX_QUESTIONS} questions")
    if not questions:
        raise ConfigError(f"{path} holds no questions")
    return questions


def first_per_family(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """Return the first `limit` questions of each family (None: all), in their order."""
    seen: Counter[str] = Counter()
    kept = []
    for question in questions:
        seen[question.family] += 1
        if limit is None or seen[question.family] <= limit:
            kept.append(question)
    return kept


def rotated(systems: Iterable[T], number: int) -> list[T]:
    """Return the order of systems for a question: each question starts with the next system."""
    order = list(systems)
    first = number % len(order)
    return order[first:] + order[:first]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the non-blank lines with their numbers, from 1."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has {size} bytes, {MAX_FILE_BYTES} at most are read")
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"cannot read questions from {path}: {reason}") from error
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}, line {number}: not UTF-8 text") from error
        if line.strip():
            yield number, line


def _parse(line: str) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"must be a JSON object, got {_show(data)}")
    return data


def _question(data: dict[str, Any]) -> Question:
    if "text" in data and "turns" not in data:
        data["turns"] = [data.pop("text")]
    if missing := [key for key in _REQUIRED if key not in data]:
        raise ValueError(f"{missing[0]} is missing")
    if unknown := sorted(data.keys() - {*_REQUIRED, *_OPTIONAL}):
        known = ", ".join((*_REQUIRED, *_OPTIONAL))
        raise ValueError(f"unknown key {_show(unknown[0])}; known are {known}")
    number = data["question_id"]
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"question_id must be an integer from 0 on, got {_show(number)}")
    turns = _texts(data["turns"], "turns", MAX_TURNS)
    category = _text(data["category"], "category", MAX_CATEGORY_CHARACTERS).strip()
    return Question(number, category, turns, _reference(data.get("reference"), len(turns)))


def _reference(value: Any, num_turns: int) -> tuple[tuple[str, ...], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError(f"reference must be a list, got {_show(value)}")
    if len(value) > num_turns:
        raise ValueError(f"reference has {len(value)} answers for {num_turns} turns")
    return tuple(_answers(item, f"reference[{i}]") for i, item in enumerate(value))


def _answers(value: Any, name: str) -> tuple[str, ...]:
    """Read one answer or a list of them; a blank means that none is right."""
    answers = value if isinstance(value, list) else [value]
    if not answers or not all(isinstance(answer, str) for answer in answers):
        raise ValueError(f"{name} must be a text or a list of texts, got {_show(value)}")
    return tuple(answers)


def _texts(value: Any, name: str, max_items: int) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{name} must be a list of texts, at least one, got {_show(value)}")
    if len(value) > max_items:
        raise ValueError(f"{name} must have {max_items} texts at most, got {len(value)}")
    return tuple(_text(item, f"{name}[{i}]", MAX_TURN_CHARACTERS) for i, item in enumerate(value))


def _text(value: Any, name: str, max_characters: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be a text that is not blank, got {_show(value)}")
    if len(value) > max_characters:
        raise ValueError(f"{name} must have {max_characters} characters at most, got {len(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{name} holds half of a surrogate pair, which is no character")
    return value


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
