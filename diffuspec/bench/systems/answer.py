"""A system as seen by the benchmark: prompts in, timed answers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from diffuspec.core.types import StepStats


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and its cost."""

    token_ids: tuple[int, ...]  # up to and including EOS
    seconds: float  # wall clock of the whole call, prefill included
    num_steps: int  # target forwards that committed tokens
    steps: tuple[StepStats, ...] = ()  # empty for transformers' systems
    forward_seconds: float | None = None  # time in both models' forwards; None: unknown


class System(Protocol):
    """A way of continuing prompts greedily."""

    @property
    def name(self) -> str: ...

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        """Answer one prompt without anything cached from earlier prompts."""
        ...
