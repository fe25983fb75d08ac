"""Confidence intervals of a system's figures, by bootstrap over questions.

Samples of all questions are drawn with replacement. A question brings the answers of both systems
along, so that one that is slow for both widens no ratio. The interval holds the middle 95 % of the
samples' figures. The draws are the same in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Interval: TypeAlias = tuple[float, float]

_NUM_DRAWS = 1000
_PERCENTILES = (2.5, 97.5)


class QuestionCost(NamedTuple):
    """The cost of the answers to one question, all turns together."""

    num_tokens: int
    seconds: float
    num_steps: int


class Intervals(NamedTuple):
    """95 % intervals of the figures of the same names."""

    speedup: Interval
    spec_bench_speedup: Interval
    mean_acceptance_length: Interval


def bootstrap(own: Sequence[QuestionCost], baseline: Sequence[QuestionCost]) -> Intervals:
    """Return the intervals of a system's figures; both lists hold the same questions in order."""
    count = len(own)
    drawn = np.random.default_rng(0).integers(count, size=(_NUM_DRAWS, count))
    tokens, seconds, steps = np.array(own, np.float64).T
    base_tokens, base_seconds, _ = np.array(baseline, np.float64).T

    def total(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(values[drawn].sum(axis=1))

    speeds = _ratio(tokens, seconds), _ratio(base_tokens, base_seconds)
    pooled = _ratio(total(tokens), total(seconds)), _ratio(total(base_tokens), total(base_seconds))
    return Intervals(
        _middle(_ratio(*pooled)),
        _middle(_ratio(total(speeds[0]), total(speeds[1]))),
        _middle(_ratio(total(tokens), total(steps))),
    )


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _middle(values: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(values, _PERCENTILES).tolist()
    return low, high
