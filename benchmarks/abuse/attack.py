"""An attack, and what came of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.abuse.bystanders import Waits
from benchmarks.abuse.target import Target

Answers: TypeAlias = Sequence[str]


@dataclass(frozen=True, slots=True)
class Clients:
    """The service as clients with different API keys see it; all the same without keys."""

    attacker: Target
    limited: Target  # its key has max_requests 1
    other: Target  # whom the others must not disturb


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of abuse.

    `send` gets a number that differs from attempt to attempt, so that nothing is remembered from
    the attempt before where that would make it cheap.
    """

    name: str
    expected: str  # regular expression for each answer
    send: Callable[[Clients, int], Awaitable[Answers]]
    needs_keys: bool = False
    needs_forms: bool = False
    is_slow: bool = False  # waits for the limits of the service, with the other slow ones

    def unexpected(self, answers: Answers) -> list[str]:
        """Return the distinct ones of some answers that it should not have got."""
        return [one for one in dict.fromkeys(answers) if not re.fullmatch(self.expected, one)]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of an attack. `waits` and `growth_mib` are of all that were made with it."""

    attack: Attack
    number: int  # of the pass, from 0
    answers: Answers
    seconds: float
    waits: Waits
    growth_mib: float

    @property
    def summary(self) -> str:
        """The distinct answers, each with its number if there are several."""
        counts = Counter(self.answers)
        if len(self.answers) == 1:
            return self.answers[0]
        return ", ".join(f"{number} x {answer}" for answer, number in counts.most_common())
