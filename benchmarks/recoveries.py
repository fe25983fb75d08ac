"""What faults cost clients: times of tokens, and a table of the gaps between them."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Recovery:
    """The time from a fault until every role served again."""

    fault: str
    began: float
    ended: float


class Tokens:
    """The times at which answers were requested and their tokens arrived."""

    def __init__(self) -> None:
        self.is_over = False  # whether every answer has ended
        self._answers: list[list[float]] = []
        self.number = 0  # tokens received so far

    def asked(self) -> list[float]:
        """Return the list of times of a new answer, to be passed to came()."""
        self._answers.append([time.monotonic()])
        return self._answers[-1]

    def came(self, answer: list[float], num_tokens: int) -> None:
        answer.append(time.monotonic())
        self.number += num_tokens

    async def more(self, num_tokens: int) -> bool:
        """Wait for `num_tokens` more tokens; return False if all answers end first."""
        enough = self.number + num_tokens
        while self.number < enough and not self.is_over:
            await asyncio.sleep(0.02)
        return not self.is_over

    def longest_wait(self, recovery: Recovery) -> float:
        """Return the longest wait for the next token of an answer, from the fault on.

        A wait that began during the recovery counts in full, even if it ended later.
        """
        return max(map(partial(_longest_gap, recovery=recovery), self._answers), default=0.0)

    def longest_silence(self, recovery: Recovery) -> float:
        """Return the longest time without a token of any answer, from the fault on."""
        tokens = sorted(at for answer in self._answers for at in answer[1:])
        return _longest_gap(tokens, recovery)


def _longest_gap(times: Sequence[float], recovery: Recovery) -> float:
    gaps = [
        late - max(early, recovery.began)
        for early, late in itertools.pairwise(times)
        if late > recovery.began and early < recovery.ended
    ]
    return max(gaps, default=0.0)


def table(recoveries: Sequence[Recovery], tokens: Tokens) -> str:
    """Return a text table of what each kind of fault cost, in seconds."""
    columns = ("an answer waits", "no token at all", "all roles serve")
    lines = [f"{'':36}" + "".join(f"  {name:>18}" for name in columns)]
    lines += [f"{'fault':30}{'count':>6}" + len(columns) * f"  {'median':>8}  {'longest':>8}"]
    by_fault = itertools.groupby(sorted(recoveries, key=_name), _name)
    lines += [_row(name, list(group), tokens) for name, group in by_fault]
    return "\n".join([*lines, _row("all", recoveries, tokens)])


def _name(recovery: Recovery) -> str:
    return recovery.fault


def _row(name: str, recoveries: Sequence[Recovery], tokens: Tokens) -> str:
    columns = [
        [tokens.longest_wait(one) for one in recoveries],
        [tokens.longest_silence(one) for one in recoveries],
        [one.ended - one.began for one in recoveries],
    ]
    figures = [f"  {statistics.median(one):8.1f}  {max(one):8.1f}" for one in columns]
    return f"{name:30}{len(recoveries):6}" + "".join(figures)
