"""Answers as a sequence of blocks: reasoning, texts and calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from diffuspec.core.types import RequestOutput
from diffuspec.serve.openai.answers import Answer
from diffuspec.serve.openai.jobs import Generation, Job
from diffuspec.serve.openai.reading.pieces import CallPart, Piece, Thought
from diffuspec.serve.openai.reading.readers import AnswerReader

BlockKind: TypeAlias = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Block:
    """A part of an answer, while it grows."""

    place: int  # index among the blocks of the answer, from 0
    kind: BlockKind
    name: str = ""  # name of the function, if the block is a call
    text: str = ""  # content, or the arguments of a call
    logprobs: list[Any] = field(default_factory=list)  # one for each token of a text


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a block: it is opened, gets more text, or is closed."""

    what: Literal["open", "more", "close"]
    block: Block
    text: str = ""
    logprobs: Sequence[Any] = ()


class BlockReader:
    """Splits one answer into blocks as its outputs arrive."""

    def __init__(self, job: Job, generation: Generation, *, has_text: bool = False) -> None:
        """has_text: an empty answer has one block, with an empty text."""
        self.answer = Answer(generation)
        self._reader = AnswerReader(job, generation)
        self._has_text = has_text
        self._unassigned: list[Any] = []  # logprobs of tokens whose text is held back
        self.blocks: list[Block] = []
        self.is_cut = False  # the latest call was cut within its arguments

    def read(self, output: RequestOutput, logprobs: Sequence[Any] = ()) -> list[Change]:
        """Return an output's changes, in order. `logprobs`: one for each token, or empty."""
        self.answer.add(output)
        changes: list[Change] = []
        num_thought = self._reader.num_reasoning_tokens
        for place, pieces in enumerate(self._reader.read_tokens(output)):
            if self._reader.num_reasoning_tokens == num_thought:
                self._unassigned += logprobs[place : place + 1]
            num_thought = self._reader.num_reasoning_tokens
            for piece in pieces:
                self._take(piece, changes)
        self.answer.num_reasoning_tokens = self._reader.num_reasoning_tokens
        if output.finish_reason is not None:
            self.is_cut = self._reader.is_within_arguments
            if self._has_text and not self.blocks:
                self._take("", changes)
            if self.blocks:
                changes.append(Change("close", self.blocks[-1]))
        return changes

    def _take(self, piece: Piece, changes: list[Change]) -> None:
        if isinstance(piece, CallPart):
            kind: BlockKind = "call"
            text, name = piece.arguments, piece.name
        else:
            kind = "reasoning" if isinstance(piece, Thought) else "text"
            text, name = piece.text if isinstance(piece, Thought) else piece, None
        if name is not None or not self.blocks or self.blocks[-1].kind != kind:
            if self.blocks:
                changes.append(Change("close", self.blocks[-1]))
            self.blocks.append(Block(len(self.blocks), kind, name or ""))
            changes.append(Change("open", self.blocks[-1]))
        found, self._unassigned = self._unassigned, []
        block = self.blocks[-1]
        block.text += text
        if kind == "text":
            block.logprobs += found
        if text:
            changes.append(Change("more", block, text, found if kind == "text" else ()))
