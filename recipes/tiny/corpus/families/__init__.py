"""The families of conversations that the tiny pair learns, one module each.

Every family has `compose(rng, size) -> Conversation`. The user's turns are drawn from `rng`, and
each answer is a function of them, so that there is one right answer and exact match is the measure.
`size` in [0, 1] bounds the length of the conversation.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Conversation:
    """User turns, and the one right answer of the assistant to each."""

    family: str
    turns: tuple[str, ...]
    answers: tuple[str, ...]

    def __post_init__(self) -> None:
        assert len(self.turns) == len(self.answers) >= 1, (self.turns, self.answers)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One turn of the user, and its right answer."""

    turn: str
    answer: str
