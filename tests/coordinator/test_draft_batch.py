"""What one call of a drafter should take, and what is learnt from it."""

from __future__ import annotations

import math

import pytest

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.draft_batch import DraftBatch
from tests.support.stage import PROMPT, make_request

pytestmark = pytest.mark.virtual_time


async def test_a_call_is_expected_to_take_as_long_as_earlier_ones_of_its_size():
    costs, requests = StepCosts(), [make_request(), make_request()]
    for request in requests:
        request.num_draft_tokens = 4
    batch = DraftBatch(requests, [], costs)
    assert batch.num_positions == 8
    assert batch.ends_at == math.inf, "nothing is known of drafting"
    costs.observe_draft(8, 2, 0.25)
    assert batch.ends_at == math.inf, "the drafter has their prompts to read"
    for request in requests:
        request.is_known_to_drafter = True
    assert batch.ends_at == pytest.approx(batch.started_at + 0.25)


async def test_a_first_draft_teaches_what_reading_costs_and_a_later_one_what_drafting_does():
    costs, request = StepCosts(), make_request()
    request.num_draft_tokens, request.is_known_to_drafter = 4, True
    DraftBatch([request], [], costs).learn(0.25)
    assert costs.draft.at(4) == pytest.approx(0.25) and not costs.reading_seconds
    request.is_known_to_drafter = False
    DraftBatch([request], [], costs).learn(0.75)
    assert costs.draft.at(4) == pytest.approx(0.25)
    assert costs.reading_seconds == pytest.approx(0.5 / len(PROMPT))
