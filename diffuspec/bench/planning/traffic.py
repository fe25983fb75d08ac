"""The simulated traffic: prompts, the target's answers, and a drafter's guesses.

Everything is a function of the regime and the request's number, which is the prompt's first token.
At each position of an answer, the target's token, the drafter's guess and its confidence are fixed,
whatever was drafted before, so that answers and guesses are the same for every system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.params import MAX_DRAFT_TOKENS, SamplingParams
from diffuspec.core.types import DraftTree

VOCAB_SIZE = 1000  # more than the number of requests in a run
MAX_ANSWER_TOKENS = 130

_BEYOND = MAX_DRAFT_TOKENS + 2  # positions after the last token that a draft may still cover
_GOLDEN = (math.sqrt(5) - 1) / 2
_NOISE = 0.1  # relative noise of a confidence
_LISTED = (0.3, 0.18, 0.12)  # chances that an undrafted target token is this alternative
_LEAST_SHARE = 0.01


def spread(number: int) -> float:
    """Return a number between 0 and 1; those of consecutive numbers cover the range evenly."""
    return (number + 0.5) * _GOLDEN % 1


class Chances(Protocol):
    """How likely drafted tokens are right, along an answer."""

    def shares(self, number: int, num_requests: int, num_positions: int) -> list[float]:
        """Return the chance at each position of answer `number` of a run of `num_requests`."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """Chances as in text: log-odds that differ between answers and drift.

    The drift is an autoregressive process of order 1, fitted to drafts recorded at each token of an
    answer (`docs/experiments.md`).
    """

    mean: float
    between: float  # standard deviation of the answers' means
    within: float  # standard deviation inside an answer
    kept: float  # correlation from one token to the next
    is_even: bool = False  # the answers' means are spread evenly, so that few answers are enough

    def shares(self, number: int, num_requests: int, num_positions: int) -> list[float]:
        rng = np.random.default_rng((number, 1))
        drawn = NormalDist().inv_cdf(spread(number)) if self.is_even else rng.standard_normal()
        mean = self.mean + self.between * drawn
        steps = self.within * rng.standard_normal(num_positions)
        drift, shares = steps[0], []
        for step in steps:
            drift = self.kept * drift + math.sqrt(1 - self.kept**2) * step
            shares.append(1 / (1 + math.exp(-mean - drift)))
        return shares


@dataclass(frozen=True, slots=True)
class Regime:
    """A kind of requests: how likely drafted tokens are right, confidences in them, and lengths."""

    name: str
    chances: Chances
    is_sampled: bool = False
    # the drafter's confidence is share ** exponent; below 1 it is overconfident
    exponent: float = 1.0
    prompt_tokens: tuple[int, int] = (20, 140)
    answer_tokens: tuple[int, int] = (40, MAX_ANSWER_TOKENS)


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
    shares = np.array(regime.chances.shares(number, num_requests, size))
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
