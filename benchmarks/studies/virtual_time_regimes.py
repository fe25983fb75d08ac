"""The regimes of the study: which share of the drafted tokens is right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from diffuspec.bench.planning.traffic import Regime, Text

Range: TypeAlias = tuple[float, float]

_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, mod 1, cover a range evenly


@dataclass(frozen=True, slots=True)
class Ranges:
    """One share for each request. Requests cycle through the ranges, whose shares spread evenly.

    `later` holds the ranges of the second half of a run's answers, if they differ.
    """

    ranges: tuple[Range, ...]
    later: tuple[Range, ...] = ()

    def shares(self, number: int, num_requests: int, num_positions: int) -> list[float]:
        ranges = self.later if self.later and 2 * number >= num_requests else self.ranges
        turn, place = divmod(number, len(ranges))
        low, high = ranges[(place + _coin(turn)) % len(ranges)]
        return [low + (high - low) * (turn * _GOLDEN % 1)] * num_positions


def _coin(number: int) -> int:
    """Return a pseudo-random 0 or 1, so that requests do not alternate in step with the clients."""
    return int(number * number * _GOLDEN % 1 < 0.5)


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches that alternate within each answer: numbers of tokens, and the share of each."""

    stretches: tuple[tuple[int, float], ...]

    def shares(self, number: int, num_requests: int, num_positions: int) -> list[float]:
        period = [share for size, share in self.stretches for _ in range(size)]
        return [period[place % len(period)] for place in range(num_positions)]


_PAYS, _POOR = ((0.75, 0.97),), ((0.05, 0.35),)
_HARD_TEXT = Text(1.4, 0.8, 2.0, 0.5)
REGIMES: dict[str, Regime] = {
    regime.name: regime
    for regime in (
        Regime("greedy_pays", Ranges(_PAYS)),
        Regime("greedy_mixed", Ranges(((0.9, 0.97), (0.05, 0.3)))),
        Regime("greedy_poor", Ranges(_POOR)),
        Regime("sampled_pays", Ranges(((0.6, 0.85),)), is_sampled=True, exponent=0.5),
        Regime("sampled_poor", Ranges(((0.05, 0.3),)), is_sampled=True, exponent=0.5),
        Regime("easy_and_hard", Stretches(((60, 0.99), (30, 0.3)))),
        Regime("hard_then_easy", Stretches(((40, 0.3), (90, 0.97)))),
        Regime("easy_text", Text(2.8, 1.6, 2.2, 0.9)),
        Regime("hard_text", _HARD_TEXT),
        Regime("long_prompts", _HARD_TEXT, prompt_tokens=(600, 1200), answer_tokens=(30, 80)),
        Regime("turns_bad", Ranges(_PAYS, later=_POOR)),
        Regime("turns_good", Ranges(_POOR, later=_PAYS)),
    )
}


def thresholds(regime: Regime) -> tuple[float, ...]:
    """Return the shares above which a client with full knowledge may draft a request."""
    return (0.0, 0.4, 0.7) if isinstance(regime.chances, Ranges) else (0.0,)
