"""Interleaved runs: every system answers every question, one request at a time.

The order of the systems rotates from question to question, so that neither a machine that slows
down nor the processor's caches favour one of them. The second turn of a conversation contains the
baseline's answer to the first, so all systems see the same prompt; since they are lossless, it is
their own answer too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

from diffuspec.bench.questions import Question, rotated
from diffuspec.bench.systems.answer import Answer, System
from diffuspec.bench.systems.naming import (
    BASELINE,
    TRANSFORMERS_GREEDY,
    TRANSFORMERS_PROMPT_LOOKUP,
)
from diffuspec.core.errors import ConfigError, InvalidRequestError

RecordKey: TypeAlias = tuple[str, int, int, int]
"""The system, question id, turn and repeat of an answer."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The limits of an answer, and the number of repeats."""

    max_tokens: int
    max_model_len: int  # prompt and answer together
    num_repeats: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """One answer of one system."""

    system: str
    family: str
    question_id: int
    turn: int  # counted from 0
    repeat: int  # counted from 0
    answer: Answer

    @property
    def key(self) -> RecordKey:
        return self.system, self.question_id, self.turn, self.repeat


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An answer whose tokens differ from the baseline's."""

    system: str
    question_id: int
    turn: int
    repeat: int
    position: int  # index of the first token that differs

    def fails(self, dtype: str) -> bool:
        """Return whether it fails a benchmark of models in this dtype.

        Our systems must be lossless, and greedy `generate` of transformers in float32, since its
        products round otherwise in 16 bits. Differences of its prompt lookup are only reported.
        """
        if self.system == TRANSFORMERS_GREEDY:
            return dtype == "float32"
        return self.system != TRANSFORMERS_PROMPT_LOOKUP


@dataclass(frozen=True, slots=True)
class Run:
    """All answers, and the (question id, turn) pairs that exceed the context."""

    records: tuple[Record, ...]
    skipped: tuple[tuple[int, int], ...] = ()


class ChatCodec:
    """Encodes conversations and decodes answers with a transformers tokenizer.

    Without a chat template, messages become lines of text, as for a base model.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the prompt whose continuation is the assistant's next answer."""
        return list(self._tokenizer.encode(self._render(messages), add_special_tokens=False))

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        if self._tokenizer.chat_template is None:
            return "".join(message["content"] + "\n" for message in messages)
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # a template may raise anything
            raise InvalidRequestError(f"the chat template refused the messages: {error}") from error

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))


def warm_up(
    systems: Sequence[System],
    questions: Sequence[Question],
    codec: ChatCodec,
    settings: RunSettings,
) -> None:
    """Answer the first question that fits with every system, untimed. Raises ConfigError."""
    for question in questions:
        prompt = codec.encode([_user(question.turns[0])])
        if room := _room(prompt, settings):
            for system in systems:
                system.answer(prompt, room)
            return
    limit = settings.max_model_len
    raise ConfigError(f"no question fits into the target's context of {limit} tokens")


def run_questions(
    systems: Sequence[System],
    questions: Sequence[Question],
    codec: ChatCodec,
    settings: RunSettings,
    on_answer: Callable[[Record], None] = lambda record: None,
    known: Mapping[RecordKey, Record] | None = None,
) -> Run:
    """Answer all questions num_repeats times with every system. The baseline must come first.

    Answers in `known`, from an earlier run, are reused.
    """
    assert systems[0].name == BASELINE
    records: list[Record] = []
    skipped: dict[tuple[int, int], None] = {}
    for repeat in range(settings.num_repeats):
        for number, question in enumerate(questions):
            conversation = _Conversation(question, repeat, codec, settings, known or {})
            for record in conversation.hold(rotated(systems, number + repeat)):
                on_answer(record)
                records.append(record)
            skipped.update(dict.fromkeys(conversation.skipped))
    return Run(tuple(records), tuple(skipped))


@dataclass(slots=True, eq=False)
class _Conversation:
    question: Question
    repeat: int
    codec: ChatCodec
    settings: RunSettings
    known: Mapping[RecordKey, Record]
    num_turns_held: int = 0

    def hold(self, systems: Sequence[System]) -> Iterator[Record]:
        """Yield the answers turn by turn, until a turn does not fit into the context."""
        messages: list[dict[str, str]] = []
        for turn, text in enumerate(self.question.turns):
            messages.append(_user(text))
            prompt = self.codec.encode(messages)
            room = _room(prompt, self.settings)
            if not room:
                return
            for system in systems:
                key = (system.name, self.question.question_id, turn, self.repeat)
                record = self.known.get(key) or self._ask(system, turn, prompt, room)
                yield record
                if system.name == BASELINE:
                    reply = self.codec.decode(record.answer.token_ids)
            messages.append({"role": "assistant", "content": reply})
            self.num_turns_held += 1

    @property
    def skipped(self) -> list[tuple[int, int]]:
        turns = range(self.num_turns_held, len(self.question.turns))
        return [(self.question.question_id, turn) for turn in turns]

    def _ask(self, system: System, turn: int, prompt: Sequence[int], room: int) -> Record:
        question, answer = self.question, system.answer(prompt, room)
        return Record(system.name, question.family, question.question_id, turn, self.repeat, answer)


def find_mismatches(records: Sequence[Record]) -> list[Mismatch]:
    """Compare every system's tokens with the baseline's, answer by answer."""
    expected = {_key(record): record.answer for record in records if record.system == BASELINE}
    found = []
    for record in records:
        position = _first_difference(record.answer.token_ids, expected[_key(record)].token_ids)
        if position is not None:
            found.append(Mismatch(record.system, *_key(record), position))
    return found


def median_answers(records: Sequence[Record]) -> list[Record]:
    """Return for each answer the repeat of median duration (the faster one of two in the middle).

    Whole records are returned, so that all times of a record come from one run.
    """
    repeats: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        repeats[record.system, record.question_id, record.turn].append(record)
    return [
        sorted(same, key=lambda record: record.answer.seconds)[(len(same) - 1) // 2]
        for same in repeats.values()
    ]


def _key(record: Record) -> tuple[int, int, int]:
    return record.question_id, record.turn, record.repeat


def _first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    pairs = enumerate(zip_longest(ours, theirs))
    return next((position for position, (a, b) in pairs if a != b), None)


def _room(prompt: Sequence[int], settings: RunSettings) -> int:
    """Return the number of tokens that may be generated after a prompt."""
    return max(0, min(settings.max_tokens, settings.max_model_len - len(prompt)))


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
