"""SAM decoding where much matches, Token Recycling elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from diffuspec.core.config import SearchConfig
from diffuspec.core.drafter_config import SamdRecyclingConfig
from diffuspec.core.interfaces import Observation
from diffuspec.core.types import EMPTY_TREE
from diffuspec.drafters import Target, load_drafter
from diffuspec.drafters.samd_recycling import SamdRecyclingDrafter
from tests.support.draft_requests import draft_request as request
from tests.support.fakes import FAKE_TARGET, FakeVerifier

LONG = [*range(10, 16), 20, 21, *range(10, 16)]  # six tokens that stood before
SHORT = [12, 13, 20, 21, 12, 13]


def make(verifier: FakeVerifier, **settings: int) -> SamdRecyclingDrafter:
    config = SamdRecyclingConfig.model_validate(settings)
    target = Target(replace(FAKE_TARGET, max_sequences=2), None, None, verifier)
    drafter = load_drafter(config, SearchConfig(), target)
    assert isinstance(drafter, SamdRecyclingDrafter)
    return drafter


@pytest.mark.parametrize(("prefix", "first"), [(LONG, 20), (SHORT, 33)])
async def test_a_long_match_is_drafted_and_the_target_likeliest_tokens_elsewhere(
    prefix: list[int], first: int
) -> None:
    verifier = FakeVerifier()
    drafter = make(verifier)
    top = np.array([[33, 34]], np.int32)
    seen = Observation(np.array([prefix[-1]], np.int32), EMPTY_TREE, [33], (), top)
    [observer] = verifier.observers
    observer.observe([seen])
    [draft] = await drafter.draft([request(prefix)])
    assert draft.tree.token_ids[0] == first


async def test_all_that_followed_a_match_is_drafted() -> None:
    [draft] = await make(FakeVerifier()).draft([request(LONG)])
    assert draft.tree.token_ids == (20, 21, 10, 11, 12, 13, 14, 15)
    [draft] = await make(FakeVerifier(), num_draft_tokens=2).draft([request(LONG)])
    assert draft.tree.token_ids == (20, 21)


async def test_how_much_must_match_is_configured() -> None:
    [draft] = await make(FakeVerifier(), min_match_tokens=2).draft([request(SHORT)])
    assert draft.tree.token_ids[:2] == (20, 21)


async def test_verifications_are_observed_also_where_a_match_was_drafted() -> None:
    verifier = FakeVerifier()
    drafter = make(verifier)
    await drafter.draft([request(LONG)])
    [observer] = verifier.observers
    assert observer.is_active
    await drafter.release("a")
    assert not observer.is_active
    drafter.close()
    assert not verifier.observers
