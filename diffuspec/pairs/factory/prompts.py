"""What a target is asked so that it writes answers to train on, in rounds.

The target completes questions after a few first words, or after a text; it is asked to summarize
texts; and some answers are followed by a second question. Everything in a round follows from its
seed. No round depends on another one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from diffuspec.core.errors import ConfigError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import FinishReason
from diffuspec.engine.completion import Completion
from diffuspec.engine.engine import Engine
from diffuspec.pairs.factory.openings import (
    ABOUT_TEXTS,
    OPENINGS,
    SECOND_OPENINGS,
    SUMMARIES,
)

MAX_QUESTION_TOKENS = 96
TEXT_SUFFIXES = (".txt", ".md", ".rst")
TEXTS_SHARE = 0.3  # share of a round's questions that are about texts, if there are any
SECOND_SHARE = 0.25  # share of the answers that a second question follows
MAX_FIRST_CHARACTERS = 2000  # length of a first turn that a second one follows
_FREE_SHARE = 0.15  # share of the questions without first words
_WORDS = (60, 100, 160, 240, 320)  # words of a passage
_QUESTION_PLACE = "0123456789"  # no template contains this text

Chat: TypeAlias = list[dict[str, str]]
Beginning: TypeAlias = tuple[Chat, str]
"""What was said before, and the first words of the user's message."""


class Passages:
    """Passages of a folder's text files: some paragraphs that follow each other."""

    def __init__(self, folder: Path) -> None:
        """Read the files, also those in folders below. Raises ConfigError if there is no text."""
        files = sorted(path for path in folder.rglob("*") if path.suffix in TEXT_SUFFIXES)
        self._paragraphs: list[list[str]] = []
        for path in files:
            parts = re.split(r"\n\s*\n", path.read_text(encoding="utf-8", errors="replace"))
            joined = [" ".join(part.split()) for part in parts]
            if good := [part for part in joined if _is_prose(part)]:
                self._paragraphs.append(good)
        if not self._paragraphs:
            raise ConfigError(
                f"--texts: {folder} has no file ({', '.join(TEXT_SUFFIXES)}) with a paragraph of "
                "prose"
            )

    def draw(self, rng: random.Random) -> str:
        paragraphs, most = rng.choice(self._paragraphs), rng.choice(_WORDS)
        first = rng.randrange(len(paragraphs))
        words: list[str] = []
        for paragraph in paragraphs[first:]:
            words += paragraph.split()
            if len(words) >= most:
                break
        return " ".join(words[:most])


def _is_prose(paragraph: str) -> bool:
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return len(paragraph.split()) >= 12 and letters > 0.9 * len(paragraph)


@dataclass(frozen=True, slots=True)
class Answered:
    """A chat that ends with a question, and the target's answer."""

    chat: Chat
    answer: Completion


class Rounds:
    """Rounds of questions that a target writes, and of its answers."""

    def __init__(self, engine: Engine, size: int, passages: Passages | None, seed: int) -> None:
        """size: number of questions of a round. Raises ConfigError without a chat template."""
        self._engine, self._size, self._passages, self._seed = engine, size, passages, seed
        self._before([], "")

    def answers(self, number: int, sampling: SamplingParams) -> Iterator[Answered]:
        """Yield the answers of a round: to first questions, then to second ones."""
        rng = random.Random(f"{self._seed}/{number}")
        first = self._answer(self._questions(rng), sampling)
        yield from first
        followed = [answered for answered in first if _can_be_followed(answered)]
        count = round(SECOND_SHARE * len(first))
        chosen = rng.sample(followed, min(count, len(followed)))
        beginnings = [
            (
                [*answered.chat, _message("assistant", answered.answer.text)],
                _first_words(rng, SECOND_OPENINGS),
            )
            for answered in chosen
        ]
        yield from self._answer(self._complete(beginnings, rng), sampling)

    def _questions(self, rng: random.Random) -> list[Chat]:
        beginnings: list[Beginning] = []
        whole: list[Chat] = []
        for _ in range(self._size):
            if self._passages is None or rng.random() >= TEXTS_SHARE:
                beginnings.append(([], _first_words(rng, OPENINGS)))
            elif rng.random() < 0.5:
                text = rng.choice(SUMMARIES).format(text=self._passages.draw(rng))
                whole.append([_message("user", text)])
            else:
                beginnings.append(
                    ([], rng.choice(ABOUT_TEXTS).format(text=self._passages.draw(rng)))
                )
        return self._complete(beginnings, rng) + whole

    def _complete(self, beginnings: Sequence[Beginning], rng: random.Random) -> list[Chat]:
        """Let the target complete the user's messages; those that it does not end are dropped."""
        prompts = [self._before(chat, words) for chat, words in beginnings]
        sampling = [
            SamplingParams(
                max_tokens=MAX_QUESTION_TOKENS,
                temperature=1.0,
                top_p=0.95,
                seed=rng.randrange(2**31),
            )
            for _ in prompts
        ]
        found = self._engine.generate(prompts, sampling)
        return [
            [*chat, _message("user", (words + rest.text).strip())]
            for (chat, words), rest in zip(beginnings, found, strict=True)
            if rest.finish_reason is FinishReason.STOP and rest.text.strip()
        ]

    def _answer(self, chats: Sequence[Chat], sampling: SamplingParams) -> list[Answered]:
        found = self._engine.generate(chats, sampling)
        return [Answered(chat, answer) for chat, answer in zip(chats, found, strict=True)]

    def _before(self, chat: Chat, words: str) -> list[int]:
        """Return the ids of a chat up to the first words of the user's next message."""
        tokenizer: Any = self._engine.tokenizer
        if tokenizer.chat_template is None:
            raise ConfigError(
                "the target has no chat template to write questions from: give prompts in files"
            )
        messages = [*chat, _message("user", _QUESTION_PLACE)]
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
        before, found, _ = text.rpartition(_QUESTION_PLACE)
        if not found:
            raise ConfigError("the target's chat template changes the user's message")
        encode = tokenizer.backend_tokenizer.encode
        return list(encode(before + words, add_special_tokens=False).ids)


def _first_words(rng: random.Random, openings: Sequence[str]) -> str:
    return "" if rng.random() < _FREE_SHARE else rng.choice(openings)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _can_be_followed(answered: Answered) -> bool:
    answer = answered.answer
    size = sum(len(message["content"]) for message in answered.chat) + len(answer.text)
    ended = answer.finish_reason is FinishReason.STOP
    return ended and bool(answer.text.strip()) and size <= MAX_FIRST_CHARACTERS
