"""Answers as clients see them, whole or put together from a stream's chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Choice:
    """One of the answers to a request."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    calls: list[list[str]] = field(default_factory=list)  # name and arguments of each
    finish_reason: str | None = None  # None: it has not ended

    def is_beginning_of(self, other: Choice) -> bool:
        """Return whether the other may be the rest of this one, which was broken off."""
        num_tokens = len(self.token_ids)
        return other.token_ids[:num_tokens] == self.token_ids and other.text.startswith(self.text)

    def add(self, message: Mapping[str, Any]) -> None:
        """Append a delta of a stream, or a whole message."""
        self.text += message.get("content") or ""
        for number, call in enumerate(message.get("tool_calls") or ()):
            place = call.get("index", number)  # whole messages have none
            self.calls += [["", ""] for _ in range(place + 1 - len(self.calls))]
            for part, name in enumerate(("name", "arguments")):
                self.calls[place][part] += call["function"].get(name) or ""


@dataclass(slots=True)
class Answer:
    """The choices of one request by index."""

    choices: dict[int, Choice] = field(default_factory=dict)

    def add(self, choices: Iterable[Mapping[str, Any]]) -> None:
        """Append the choices of a chunk, or of a whole answer."""
        for given in choices:
            choice = self.choices.setdefault(given["index"], Choice())
            choice.add(given.get("delta") or given.get("message") or {})
            choice.token_ids += given.get("token_ids") or ()
            choice.finish_reason = given.get("finish_reason") or choice.finish_reason

    def is_beginning_of(self, other: Answer) -> bool:
        return all(
            index in other.choices and choice.is_beginning_of(other.choices[index])
            for index, choice in self.choices.items()
        )
