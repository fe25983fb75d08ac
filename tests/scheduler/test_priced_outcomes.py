"""How many outcomes of a verification are worth drafting ahead, by what calls cost."""

from __future__ import annotations

import pytest

from diffuspec.scheduler.calls import UNNAMED
from diffuspec.scheduler.pre_drafts import choose_outcomes
from diffuspec.scheduler.request import Request
from tests.support.snapshots import cost_model, decoding, in_verification


def num_ahead(
    *requests: Request,
    seconds_left: float,
    position_seconds: float = 1e-3,
    interference: float = 0.0,
    waiting: dict[Request, int] | None = None,
) -> int:
    """Return how many outcomes are drafted ahead by a drafter that is paid by the position."""
    costs = cost_model(draft=(0.0, position_seconds), interference=interference)
    return len(choose_outcomes(requests, seconds_left, costs.drafters[UNNAMED], waiting or {}))


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_no_more_outcomes_are_drafted_ahead_than_a_request_allows(allowed):
    assert num_ahead(in_verification(allowed), seconds_left=0.1) == allowed
    request = in_verification(allowed)
    assert request.pre_drafts is not None
    request.pre_drafts.num_sent = allowed
    assert num_ahead(request, seconds_left=0.1) == 0, "those of earlier calls count"


def test_as_many_outcomes_are_drafted_ahead_as_fit_behind_the_verification():
    fitting = [num_ahead(in_verification(), seconds_left=8e-3 * number) for number in (1, 2, 3)]
    assert fitting == [1, 2, 3], "each takes 8 ms"


def test_nothing_is_drafted_ahead_if_even_a_certain_outcome_would_not_pay():
    assert num_ahead(in_verification(), seconds_left=0.0) == 0
    assert num_ahead(in_verification(3), seconds_left=0.0) == 3, "those asked for are"


def test_roles_that_share_a_processor_draft_nothing_ahead():
    counts = [
        num_ahead(in_verification(), seconds_left=1.0, interference=one) for one in (1.0, 0.0)
    ]
    assert counts[0] == 0 < counts[1]


def test_requests_that_wait_for_a_draft_pay_for_those_made_ahead_in_their_call():
    waiting = {decoding(): 8, decoding(): 8}
    assert num_ahead(in_verification(), seconds_left=1.0, waiting=waiting) == 0
    assert num_ahead(in_verification(), seconds_left=1.0) > 0
