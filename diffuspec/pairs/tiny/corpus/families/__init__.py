"""The kinds of conversation the `tiny` pair learns, one module each.

Every family has `compose(rng, size) -> Conversation`. What the user says is drawn from
`rng`; every answer is a function of what the user said, so there is one right answer and an
exact text match is the measure. `size` in [0, 1] bounds the length of what is drawn.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conversation:
    """User turns and, for each of them, the one right answer of the assistant."""

    family: str
    turns: tuple[str, ...]
    answers: tuple[str, ...]

    def __post_init__(self) -> None:
        assert len(self.turns) == len(self.answers) >= 1, (self.turns, self.answers)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the user says once, and the right answer to it."""

    turn: str
    answer: str
