"""Notes in the line of statistics: paused or failed drafts, and answers that were cut off."""

import pytest

from diffuspec.cli.display import Shown, notes_on
from diffuspec.core.types import FinishReason, StepStats
from diffuspec.telemetry.request_stats import summarize

PLAIN, DRAFTED = StepStats(0, 0, 0, 1), StepStats(4, 4, 3, 4)
FAILED = StepStats(0, 0, 0, 1, fallback="drafter_unavailable")
PAUSED = "drafts paused: plain decoding is faster at the moment"


@pytest.mark.parametrize(
    ("steps", "has_drafts", "notes"),
    [
        ([PLAIN] * 6 + [DRAFTED], True, [PAUSED]),
        ([PLAIN] * 6, False, []),  # nothing decided against drafts
        ([PLAIN] + [DRAFTED] * 6, True, []),
        ([PLAIN] * 2, True, []),
        ([FAILED] * 5 + [DRAFTED], True, ["drafting failed in 5 of 6 steps"]),
    ],
)
def test_why_there_were_few_drafts_is_said(steps, has_drafts, notes):
    assert notes_on(Shown(summarize(steps, 3), FinishReason.STOP), 256, has_drafts) == notes


@pytest.mark.parametrize(
    ("num_tokens", "reason", "notes"),
    [
        (8, FinishReason.LENGTH, ["cut off at --max-tokens 8"]),
        (5, FinishReason.LENGTH, ["cut off at the end of the context"]),
        (8, FinishReason.STOP, []),
    ],
)
def test_an_answer_that_was_cut_off_says_by_what(num_tokens, reason, notes):
    stats = summarize([StepStats(4, 4, 3, num_tokens)], 3)
    assert notes_on(Shown(stats, reason), 8, has_drafts=True) == notes
