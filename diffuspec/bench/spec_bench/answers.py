"""Answer files in Spec-Bench's format, one for each system, for its speed.py and equal.py.

Its speed.py recounts the baseline's tokens from the text, minus one per turn for a BOS token that
many tokenizers do not add; so its speed-ups are a little higher than ours.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from diffuspec.bench.questions import Question
from diffuspec.bench.run import Record
from diffuspec.bench.systems.answer import Answer


def write_answers(
    folder: Path,
    model: str,
    questions: Sequence[Question],
    records: Sequence[Record],
    decode: Callable[[Sequence[int]], str],
) -> None:
    """Write SYSTEM.jsonl into a folder for each system whose steps are known.

    `records` hold one answer to each turn of each system.
    """
    folder.mkdir(exist_ok=True)
    by_system: dict[str, dict[int, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        by_system[record.system][record.question_id].append(record)
    for system, answered in by_system.items():
        if all(accept_lengths(one.answer) is not None for own in answered.values() for one in own):
            lines = _lines(f"{model}-{system}", questions, answered, decode)
            (folder / f"{system}.jsonl").write_text("".join(lines), encoding="utf-8")


def accept_lengths(answer: Answer) -> list[int] | None:
    """Return the number of tokens that each step committed; None: only their mean is known."""
    if answer.steps:
        committed = (step.num_committed_tokens for step in answer.steps)
        return [count for count in committed if count]
    num_tokens = len(answer.token_ids)
    return [1] * num_tokens if answer.num_steps == num_tokens else None


def _lines(
    model_id: str,
    questions: Sequence[Question],
    answered: dict[int, list[Record]],
    decode: Callable[[Sequence[int]], str],
) -> Iterator[str]:
    for question in questions:
        if own := sorted(answered.get(question.question_id, []), key=lambda one: one.turn):
            data = {
                "question_id": question.question_id,
                "category": question.category,
                "answer_id": uuid4().hex,
                "model_id": model_id,
                "choices": [_choice([record.answer for record in own], decode)],
                "tstamp": time.time(),
            }
            yield json.dumps(data, ensure_ascii=False) + "\n"


def _choice(answers: Sequence[Answer], decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    return {
        "index": 0,
        "turns": [decode(answer.token_ids).strip() for answer in answers],
        "decoding_steps": [answer.num_steps for answer in answers],
        "new_tokens": [len(answer.token_ids) for answer in answers],
        "wall_time": [answer.seconds for answer in answers],
        "accept_lengths": [n for answer in answers for n in accept_lengths(answer) or ()],
    }
