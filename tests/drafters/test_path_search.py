"""The path search that a configuration describes, over the embedded pair's n-gram model."""

from __future__ import annotations

import math

import numpy as np

from diffuspec.core.config import SearchConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, Lattice
from diffuspec.drafters.path_search import make_path_search
from diffuspec.pairs.tiny import NGRAM
from tests.support.draft_requests import draft_request

INFO = TargetInfo(vocab_size=4095, max_model_len=64, max_sequences=2, eos_token_ids=(0,))
PREFIX = [50, 60, 70, 50, 60, 70, 50, 60]
TWO = Lattice(  # 71 is likelier than 70, by the lattice
    np.array([[71, 70]], np.int32), np.log(np.array([[0.5, 0.4]], np.float32)),
    np.array([2], np.int32), 1,
)  # fmt: skip


def draft(**settings: object) -> Draft:
    config = SearchConfig.model_validate({"ngram": NGRAM, **settings})
    return make_path_search(config, INFO, None).search_one(draft_request(PREFIX, 3, 8), TWO)


def share(found: Draft) -> float:
    """Return the probability of 70 among the two."""
    chances = dict(zip(found.tree.token_ids, map(math.exp, found.confidences), strict=False))
    return chances[70] / (chances[70] + chances[71])


def test_counts_of_the_text_make_what_it_repeats_likelier() -> None:
    assert share(draft(cache_weight=0.7)) > 0.9 > share(draft())


def test_retrieval_goes_on_where_the_lattice_ends() -> None:
    assert len(draft().tree.token_ids) == 2
    found = draft(retrieval=True)
    assert found.tree.token_ids[:3] == (70, 50, 60)
    assert found.tree.parents[:3] == (-1, 0, 1)
