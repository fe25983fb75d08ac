"""The simulated traffic: prompts, the target's answers, and a drafter's guesses.

Everything is a function of the regime and the request's number, which is the prompt's first token.
At each position of an answer, the target's token, the drafter's guess and its confidence are fixed,
whatever was drafted before, so that answers and guesses are the same for every system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.params import MAX_DRAFT_TOKENS, SamplingParams
from diffuspec.core.types import DraftTree

VOCAB_SIZE = 1000  # more than the number of requests in a run
MAX_ANSWER_TOKENS = 130

_BEYOND = MAX_DRAFT_TOKENS + 2  # positions after the last token that a draft may still cover
_GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, mod 1, cover a range evenly
_NOISE = 0.1  # relative noise of a confidence
_LISTED = (0.3, 0.18, 0.12)  # chances that an undrafted target token is this alternative
_LEAST_SHARE = 0.01

Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Text:
    """Shares of right tokens as in text: log-odds that differ between answers and drift.

    The drift is an autoregressive process of order 1, fitted to drafts recorded at each token of an
    answer (`docs/experiments.md`).
    """

    mean: float
    between: float  # standard deviation of the answers' means
    within: float  # standard deviation inside an answer
    kept: float  # correlation from one token to the next

    def shares(self, number: int, num_positions: int) -> list[float]:
        rng = np.random.default_rng((number, 1))
        mean = self.mean + self.between * rng.standard_normal()
        steps = self.within * rng.standard_normal(num_positions)
        drift, shares = steps[0], []
        for step in steps:
            drift = self.kept * drift + math.sqrt(1 - self.kept**2) * step
            shares.append(1 / (1 + math.exp(-mean - drift)))
        return shares


@dataclass(frozen=True, slots=True)
class Regime:
    """The share of drafted tokens that are right, and the drafter's confidence in them.

    Requests cycle through the ranges; within a range, their shares are spread evenly. `later` holds
    the ranges of the second half of a run's answers, if they differ. `stretches`, if any, alternate
    within each answer instead: numbers of tokens, and the share that is right. `text`, if given,
    makes shares drift.
    """

    name: str
    ranges: tuple[Range, ...] = ()
    later: tuple[Range, ...] = ()
    stretches: tuple[tuple[int, float], ...] = ()
    text: Text | None = None
    is_sampled: bool = False
    # the drafter's confidence is share ** exponent; below 1 it is overconfident
    exponent: float = 1.0
    prompt_tokens: tuple[int, int] = (20, 140)
    answer_tokens: tuple[int, int] = (40, MAX_ANSWER_TOKENS)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Shares above which a client with full knowledge may draft a request."""
        return (0.0,) if self.stretches or self.text else (0.0, 0.4, 0.7)

    def shares(self, number: int, num_requests: int, num_positions: int) -> list[float]:
        """Return the chance that a drafted token is right, for each position of an answer."""
        if self.text is not None:
            return self.text.shares(number, num_positions)
        if self.stretches:
            period = [share for size, share in self.stretches for _ in range(size)]
            return [period[place % len(period)] for place in range(num_positions)]
        ranges = self.later if self.later and 2 * number >= num_requests else self.ranges
        turn, place = divmod(number, len(ranges))
        low, high = ranges[(place + _coin(turn)) % len(ranges)]
        return [low + (high - low) * (turn * _GOLDEN % 1)] * num_positions


def _coin(number: int) -> int:
    """Return a pseudo-random 0 or 1, so that requests do not alternate in step with the clients."""
    return int(number * number * _GOLDEN % 1 < 0.5)


_PAYS, _POOR = ((0.75, 0.97),), ((0.05, 0.35),)
_HARD_TEXT = Text(1.4, 0.8, 2.0, 0.5)
REGIMES: dict[str, Regime] = {
    regime.name: regime
    for regime in (
        Regime("greedy_pays", _PAYS),
        Regime("greedy_mixed", ((0.9, 0.97), (0.05, 0.3))),
        Regime("greedy_poor", _POOR),
        Regime("sampled_pays", ((0.6, 0.85),), is_sampled=True, exponent=0.5),
        Regime("sampled_poor", ((0.05, 0.3),), is_sampled=True, exponent=0.5),
        Regime("easy_and_hard", stretches=((60, 0.99), (30, 0.3))),
        Regime("hard_then_easy", stretches=((40, 0.3), (90, 0.97))),
        Regime("easy_text", text=Text(2.8, 1.6, 2.2, 0.9)),
        Regime("hard_text", text=_HARD_TEXT),
        Regime("long_prompts", text=_HARD_TEXT, prompt_tokens=(600, 1200), answer_tokens=(30, 80)),
        Regime("turns_bad", _PAYS, later=_POOR),
        Regime("turns_good", _POOR, later=_PAYS),
    )
}

Alternatives: TypeAlias = tuple[tuple[int, float], ...]


class Guess(NamedTuple):
    """What a drafter proposes at a position of an answer; see `Draft`."""

    tree: DraftTree
    confidences: tuple[float, ...]
    alternatives: tuple[Alternatives, ...]


@dataclass(frozen=True)
class Answer:
    """A prompt, the target's answer, and the drafter's guesses at each position of it.

    The tables continue beyond the answer's end, as drafts do.
    """

    number: int
    prompt: tuple[int, ...]
    num_tokens: int
    is_sampled: bool
    share: float  # share of drafted tokens that are right
    own: tuple[int, ...]  # the target's tokens, [num_tokens + _BEYOND], as in the other tables
    drafted: tuple[int, ...]
    confidences: tuple[float, ...]
    listed_at: tuple[int, ...]  # place of the target's token beside a wrong guess

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The answer of plain decoding."""
        return self.own[: self.num_tokens]

    @property
    def sampling(self) -> SamplingParams:
        temperature, seed = (1.0, self.number) if self.is_sampled else (0.0, None)
        return SamplingParams(
            max_tokens=self.num_tokens, temperature=temperature, seed=seed, ignore_eos=True
        )

    def position(self, num_tokens: int, num_prompt_tokens: int) -> int:
        """Return the table index of the token after a prefix, or the last index."""
        return min(num_tokens - num_prompt_tokens, self.num_tokens)

    def guess(self, position: int, num_draft_tokens: int, max_nodes: int) -> Guess:
        """Return the draft at a position of the tables: a chain."""
        end = position + min(num_draft_tokens, max_nodes)
        tree, confidences = chain(self.drafted[position:end]), self.confidences[position:end]
        return Guess(tree, confidences, self.alternatives[position : end + 1])

    @cached_property
    def alternatives(self) -> tuple[Alternatives, ...]:
        """The drafter's likeliest tokens at each position, its guess first."""
        columns = self.own, self.drafted, self.confidences, self.listed_at
        return tuple(map(_alternatives, *columns))


def _alternatives(own: int, drafted: int, confidence: float, listed_at: int) -> Alternatives:
    left = max(1 - math.exp(confidence), _LEAST_SHARE)
    found = [(drafted, confidence)]
    for place, share in enumerate(_LISTED):
        is_own = place == listed_at and drafted != own
        token_id = own if is_own else (own + VOCAB_SIZE // 2 + place) % VOCAB_SIZE
        found.append((token_id, min(math.log(left * share), found[-1][1])))
    return tuple(found)


@lru_cache(maxsize=8)
def make_answers(regime: Regime, num_requests: int) -> tuple[Answer, ...]:
    """Return the requests of a run by number. Lengths and random draws are alike in all regimes."""
    return tuple(make_answer(regime, number, num_requests) for number in range(num_requests))


def make_answer(regime: Regime, number: int, num_requests: int) -> Answer:
    """Return a request by its number."""
    rng = np.random.default_rng(number)
    least, most = regime.prompt_tokens
    prompt = rng.integers(0, VOCAB_SIZE, rng.integers(least, most + 1))
    prompt[0] = number
    least, most = regime.answer_tokens
    num_tokens = int(rng.integers(least, most + 1))
    size = num_tokens + _BEYOND
    own = rng.integers(0, VOCAB_SIZE, size)
    luck, noise, listing = rng.random((3, size))
    shares = np.array(regime.shares(number, num_requests, size))
    # A wrong guess is never the target's token, nor one of `_alternatives`.
    wrong = (own + 1 + rng.integers(0, VOCAB_SIZE // 2 - 1, size)) % VOCAB_SIZE
    confidences = np.log(shares) * regime.exponent * (1 + _NOISE * (2 * noise - 1))
    return Answer(
        number=number,
        prompt=tuple(prompt.tolist()),
        num_tokens=num_tokens,
        is_sampled=regime.is_sampled,
        share=float(shares[:num_tokens].mean()),
        own=tuple(own.tolist()),
        drafted=tuple(np.where(luck < shares, own, wrong).tolist()),
        confidences=tuple(confidences.tolist()),
        listed_at=tuple(np.searchsorted(np.cumsum(_LISTED), listing).tolist()),
    )
