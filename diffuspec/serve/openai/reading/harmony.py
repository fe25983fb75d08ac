"""Messages in channels, as written by gpt-oss: reasoning, calls and the answer.

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary
to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from diffuspec.serve.openai.reading.pieces import (
    SPACE,
    CallPart,
    Piece,
    StateReader,
    Thought,
    first_mark,
    length_begun,
)

START, CHANNEL, MESSAGE, END = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_ENDS = (END, "<|call|>", "<|return|>", START, CHANNEL)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")

Kind: TypeAlias = Literal["content", "analysis", "call"]


class HarmonyReader(StateReader):
    """Splits the messages of one answer by channel."""

    def __init__(self) -> None:
        super().__init__(self._at_start)
        self._kind: Kind = "content"

    @property
    def is_within_arguments(self) -> bool:
        return False  # the token that ends a call ends the answer; only max_tokens can cut a call

    @property
    def is_reasoning(self) -> bool:
        return self._kind == "analysis" and self._read_on == self._in_message

    def finish(self) -> list[Piece]:
        rest = self._take_rest()
        if self._read_on == self._in_header or not rest:
            return []
        return [self._piece(rest)]

    def _at_start(self, pieces: list[Piece]) -> bool:
        """Continue with a header, or with a text without header, which is content."""
        begun = self._text.lstrip(SPACE)
        heads = (START, CHANNEL, "to=", "assistant")
        if any(begun.startswith(head) for head in heads):
            self._read_on = self._in_header
        elif any(head.startswith(begun) for head in heads):
            return False
        else:
            self._read_on = self._in_message
        return True

    def _in_header(self, pieces: list[Piece]) -> bool:
        header, found, after = self._text.partition(MESSAGE)
        if not found:
            return False
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient:
            self._kind = "call"
            pieces.append(CallPart(recipient[1], ""))
        else:
            is_analysis = channel is not None and channel[1] == "analysis"
            self._kind = "analysis" if is_analysis else "content"
        self._text, self._read_on = after, self._in_message
        return True

    def _in_message(self, pieces: list[Piece]) -> bool:
        found = first_mark(self._text, _ENDS)
        if found is None:
            kept = self._text[: len(self._text) - length_begun(self._text, _ENDS)]
        else:
            kept = self._text[: found[0]]
        pieces += [self._piece(kept)] if kept else []
        self._text = self._text[len(kept) :]
        if found is None:
            return False
        if found[1] not in (START, CHANNEL):
            self._text = self._text[len(found[1]) :]
        self._read_on = self._in_header
        return True

    def _piece(self, text: str) -> Piece:
        if self._kind == "call":
            return CallPart(None, text)
        return Thought(text) if self._kind == "analysis" else text
