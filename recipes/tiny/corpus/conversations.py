"""The generated corpus of the tiny pair: training conversations and held-out questions.

A hash of the user's turns decides whether a conversation is held out, so that training and
evaluation agree without a shared file. Source code is held out by module instead, because excerpts
of a module overlap.
"""

import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from recipes.tiny.corpus.families import (
    Conversation,
    arithmetic,
    facts,
    passages,
    source,
    summaries,
    talk,
    translation,
)

__all__ = [
    "FAMILIES",
    "Conversation",
    "Question",
    "conversation",
    "held_out_questions",
    "is_held_out",
    "training_conversations",
    "write_questions",
]

_COMPOSERS: dict[str, Callable[[random.Random, float], Conversation]] = {
    "mt_bench": talk.compose,
    "translation": translation.compose,
    "summarization": summaries.compose,
    "qa": facts.compose,
    "math_reasoning": arithmetic.compose,
    "rag": passages.compose,
    "code": source.compose,
}
FAMILIES = tuple(_COMPOSERS)

_HELD_OUT_ONE_IN = 20
_MAX_DRAWS_PER_QUESTION = 2000


@dataclass(frozen=True, slots=True)
class Question:
    """One line of a question file in Spec-Bench's format."""

    question_id: int
    category: str
    turns: list[str]
    reference: list[str]


def conversation(family: str, rng: random.Random, size: float = 1.0) -> Conversation:
    """Draw one conversation of a family, whose length is bounded by `size` in [0, 1]."""
    if family not in _COMPOSERS:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {family!r}")
    if not 0.0 <= size <= 1.0:
        raise ValueError(f"size must be in [0, 1], got {size}")
    return _COMPOSERS[family](rng, size)


def is_held_out(drawn: Conversation) -> bool:
    """Return whether a conversation is held out from training; the same on every machine."""
    if drawn.family == source.FAMILY:
        return source.is_held_out_module(source.module_of(drawn))
    return zlib.crc32("\n".join(drawn.turns).encode()) % _HELD_OUT_ONE_IN == 0


def training_conversations(
    seed: int, weights: Mapping[str, float] | None = None
) -> Iterator[Conversation]:
    """Yield an endless series of training conversations, families by weight (default: evenly)."""
    rng = random.Random(seed)
    shares = dict.fromkeys(FAMILIES, 1.0) if weights is None else dict(weights)
    families = list(shares)
    while True:
        family = rng.choices(families, weights=list(shares.values()))[0]
        drawn = conversation(family, rng)
        if not is_held_out(drawn):
            yield drawn


def held_out_questions(per_family: int) -> list[Question]:
    """Return distinct held-out questions of each family, at full size, numbered from 1."""
    rng = random.Random(0)
    drawn = [one for family in FAMILIES for one in _held_out(family, per_family, rng)]
    return [
        Question(number, one.family, list(one.turns), list(one.answers))
        for number, one in enumerate(drawn, start=1)
    ]


def _held_out(family: str, count: int, rng: random.Random) -> list[Conversation]:
    found: dict[tuple[str, ...], Conversation] = {}
    for _ in range(count * _MAX_DRAWS_PER_QUESTION):
        if len(found) == count:
            break
        drawn = conversation(family, rng)
        if is_held_out(drawn):
            found.setdefault(drawn.turns, drawn)
    if len(found) < count:
        raise ValueError(f"{family} has only {len(found)} held-out questions, asked for {count}")
    return list(found.values())


def write_questions(questions: list[Question], path: Path) -> None:
    """Write questions as JSON lines in Spec-Bench's format."""
    lines = (json.dumps(asdict(question), ensure_ascii=False) for question in questions)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
