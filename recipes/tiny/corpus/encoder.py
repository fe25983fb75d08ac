"""Conversations as token ids, with answers marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from diffuspec.pairs.factory.examples import Example
from recipes.tiny.corpus.conversations import Conversation


class Encoder:
    """Encodes conversations as the chat template does."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer: Any = tokenizer
        self._user = self.ids("<|im_start|>user\n")
        self._assistant = self.ids("<|im_end|>\n<|im_start|>assistant\n")
        self._end = self.ids("<|im_end|>")
        self.newline = self.ids("\n")
        self.last_special_id: int = max(tokenizer.all_special_ids)

    def conversation(self, source: Conversation) -> Example:
        turns = [self.ids(text) for text in source.turns]
        return self.turns(turns, [self.ids(text) for text in source.answers])

    def turns(self, turns: Sequence[list[int]], answers: Sequence[list[int]]) -> Example:
        token_ids: list[int] = []
        is_answer: list[bool] = []
        for turn, answer in zip(turns, answers, strict=True):
            asked = [*self._user, *turn, *self._assistant]
            if token_ids:
                asked = [*self.newline, *asked]
            said = [*answer, *self._end]
            token_ids += asked + said
            is_answer += [False] * len(asked) + [True] * len(said)
        return Example(token_ids, is_answer)

    def ids(self, text: str) -> list[int]:
        """Return the token ids of plain text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids."""
        text: str = self._tokenizer.decode(token_ids)
        return text
