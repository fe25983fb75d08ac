"""The proxy mixed with counts of the request's text: small examples, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from diffuspec.algorithm.cache_model import CacheModel, TextCounts
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest

UNIFORM = math.log(0.1)


class UniformProxy:
    """Ten tokens, equally likely; its state is the number of tokens seen."""

    max_context_tokens = 1

    def begin(self, context: Sequence[int], salt: str | None = None) -> int:
        return len(context)

    def expand(self, states: Sequence[Any], candidates: Sequence[int]) -> Any:
        logprobs = [[UNIFORM] * len(candidates) for _ in states]
        return logprobs, [[state + 1] * len(candidates) for state in states]


def request(prefix: Sequence[int], name: str = "r") -> DraftRequest:
    tokens = np.array(prefix, np.int32)
    return DraftRequest(name, tokens, 4, "path", 16, 0.5, SamplingParams())


def counts_of(*texts: Sequence[int]) -> TextCounts:
    counts = TextCounts()
    for text in texts:
        counts.follow(np.array(text, np.int32))
    return counts


def test_the_longer_context_counts_where_it_is_known() -> None:
    counts = counts_of([1, 2, 3, 5, 2, 4, 1, 2, 3])
    assert counts.after((1, 2)) == {3: 2}
    assert counts.after((9, 2)) == {3: 2, 4: 1}
    assert counts.after((9, 9)) == {}


def test_counts_follow_a_text_that_is_taken_back() -> None:
    text = [1, 2, 3, 1, 2]
    counts = counts_of(text, [*text, 4, 4, 4], [*text[:3], 7], text)
    for context in ((1, 2), (2, 3), (3,), (4,), (4, 4), (7,)):
        assert counts.after(context) == counts_of(text).after(context)


def test_a_context_seen_before_shares_the_weight() -> None:
    prefix = [1, 2, 3, 1, 2, 3, 1, 2]
    proxy = CacheModel(UniformProxy(), 0.5, 2).proxy_for(request(prefix))
    [[three, four]], _ = proxy.expand([proxy.begin(prefix)], [3, 4])
    weight = 0.5 * 2 / (2 + 0.5)  # 3 followed 1 2 twice
    assert math.exp(three) == pytest.approx((1 - weight) * 0.1 + weight)
    assert math.exp(four) == pytest.approx((1 - weight) * 0.1)


def test_a_new_context_leaves_the_proxy_alone() -> None:
    proxy = CacheModel(UniformProxy(), 0.5, 2).proxy_for(request([1, 2, 3]))
    assert proxy.expand([proxy.begin([1, 2, 3])], [3, 4])[0] == [[UNIFORM, UNIFORM]]


def test_the_state_after_a_candidate_is_that_of_its_own_context() -> None:
    prefix = [1, 2, 3, 1, 2]
    proxy = CacheModel(UniformProxy(), 0.5, 2).proxy_for(request(prefix))
    _, [[after]] = proxy.expand([proxy.begin(prefix)], [3])
    assert after == proxy.begin([*prefix, 3])
    [[one, two]], _ = proxy.expand([after], [1, 2])
    assert one > UNIFORM > two


def test_no_request_knows_the_text_of_another() -> None:
    model = CacheModel(UniformProxy(), 0.5, 2)
    model.proxy_for(request([1, 2, 3, 1, 2], "a"))
    proxy = model.proxy_for(request([1, 2], "b"))
    assert proxy.expand([proxy.begin([1, 2])], [3])[0] == [[UNIFORM]]
