"""Requests that a target cannot serve, and drafts that cannot be verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.algorithm.validation import check_draft
from diffuspec.core.errors import ContextLengthError, InvalidRequestError
from diffuspec.core.types import Draft, DraftRequest
from tests.support.fakes import FAKE_TARGET, FakeVerifier, always_right, make_draft
from tests.support.stage import FIXED, PRE_DRAFTING, PROMPT, SHORT, on_stage, overlapped

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


@pytest.mark.parametrize(
    ("prompt", "sampling", "speculation", "error", "message"),
    [
        ([], SHORT, FIXED, InvalidRequestError, "the prompt is empty"),
        ([1, -1], SHORT, FIXED, InvalidRequestError, "from 0 to 49, got -1"),
        ([1, 50], SHORT, FIXED, InvalidRequestError, "from 0 to 49, got 50"),
        ([1, 2**40], SHORT, FIXED, InvalidRequestError, f"got {2**40}"),
        ([1] * 489, SHORT, FIXED, ContextLengthError, "489 .* 24 do not fit .* 512"),
        ([1], replace(SHORT, max_tokens=512), FIXED, ContextLengthError, "do not fit"),
        ([1], replace(SHORT, temperature=1.0), FIXED, InvalidRequestError, "seed must be given"),
        ([1], replace(SHORT, stop_token_ids=(50,)), FIXED, InvalidRequestError, "stop_token_ids"),
        ([1], replace(SHORT, allowed_token_ids=(50,)), FIXED, InvalidRequestError, "allowed_"),
    ],
)
async def test_bad_requests_are_refused_before_any_work(
    prompt, sampling, speculation, error, message
):
    async with on_stage() as stage:
        with pytest.raises(error, match=message):
            await stage.tokens(prompt, sampling, speculation)
        assert not stage.verifier.batches and not stage.drafter.batches


async def test_more_nodes_than_the_target_verifies_are_refused():
    verifier = FakeVerifier(replace(FAKE_TARGET, max_tree_nodes=8))
    async with on_stage(None, verifier=verifier) as stage:
        with pytest.raises(InvalidRequestError, match="at most 8, got 32"):
            await stage.tokens()


async def test_a_request_that_fills_the_context_exactly_is_answered():
    async with on_stage() as stage:
        assert len(await stage.tokens([1] * 488)) == 24


# ---- drafts


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (make_draft(chain(range(5))), "at most 4 nodes"),
        (Draft(chain([1, 2]), (0.0,), 2), "as many confidences, got 2 and 1"),
        (make_draft(chain([50])), "below 50, got 50"),
        (make_draft(chain([-1])), "0 or more"),
        (replace(make_draft(chain([1])), alternatives=((),)), "for none or for 2 places, got 1"),
        (
            replace(make_draft(chain([1])), alternatives=((), ((50, -1.0),))),
            "alternative token ids must be from 0 to 49, got 50",
        ),
    ],
)
def test_an_invalid_draft_is_refused_with_the_value(draft: Draft, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_draft(draft, 4, FAKE_TARGET)


def test_a_draft_at_the_limits_is_valid() -> None:
    draft = make_draft(chain([0, 49, 0, 49]))
    check_draft(replace(draft, alternatives=(((49, -1.0),),) * 5), 4, FAKE_TARGET)


@pytest.mark.parametrize("alternatives", [((),), (((10**6, -1.0),),) * 5, (((-1, -1.0),),) * 5])
async def test_a_draft_with_invalid_alternatives_is_dropped(alternatives):
    async with overlapped(strategy=always_right) as stage:
        honest = stage.drafter.draft

        async def invalid(requests: Sequence[DraftRequest]) -> list[Draft]:
            drafts = await honest([replace(request, num_draft_tokens=4) for request in requests])
            return [replace(draft, alternatives=alternatives) for draft in drafts]

        stage.drafter.draft = invalid
        steps = await stage.steps(PROMPT, SHORT, PRE_DRAFTING)
        assert steps[0].fallback == "invalid_draft"
