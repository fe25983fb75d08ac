"""Attacks, and their results."""

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
    """Clients of the service, each with its own API key; without keys all are the same."""

    attacker: Target
    limited: Target  # its key has max_requests 1
    other: Target  # the client whose waits are measured


@dataclass(frozen=True, slots=True)
class Attack:
    """One kind of abuse.

    `send` gets the number of the attempt, from which it makes new requests: the service remembers
    those of earlier attempts, and would answer them at no cost.
    """

    name: str
    expected: str  # regular expression for each answer
    send: Callable[[Clients, int], Awaitable[Answers]]
    needs_keys: bool = False
    needs_forms: bool = False
    is_slow: bool = False  # waits for the limits of the service, with the other slow ones

    def unexpected(self, answers: Answers) -> list[str]:
        """Return the distinct answers that are not the expected ones."""
        distinct = dict.fromkeys(answers)
        return [answer for answer in distinct if not re.fullmatch(self.expected, answer)]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of an attack. `waits` and `growth_mib` include attacks made at the same time."""

    attack: Attack
    number: int  # number of the pass, from 0
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
