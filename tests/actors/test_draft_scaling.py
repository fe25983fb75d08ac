"""The number of draft servers follows the drafts that wait and the time spent drafting."""

import pytest

from actors.draft_load import DraftLoad
from actors.draft_scaling import Demand, DraftScaling, decide, desired_servers
from diffuspec.core.errors import ConfigError
from diffuspec.core.validation import validate

SCALING = DraftScaling(
    max_servers=4, target_drafting_share=0.5, target_queued=2.0, up_seconds=10.0, down_seconds=60.0
)


def load(num_engines: int, num_queued: float = 0.0, share: float = 0.0) -> DraftLoad:
    return DraftLoad(num_engines, num_queued, share, failing_share=0.0)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([], 1),
        ([load(0)], 1),
        ([load(8, share=0.5)], 1),
        ([load(8, share=0.51)], 2),
        ([load(8, share=1.0), load(8, share=1.0)], 4),
        ([load(8, share=1.0)] * 3, 4),  # the most
        ([load(1, share=0.25), load(1, share=0.25)], 1),
        ([load(8, num_queued=5.0)], 3),
        ([load(8, num_queued=5.0, share=0.9)], 3),  # the larger of both
        ([load(1, num_queued=9.0, share=1.0)], 1),  # a second server would have no engine
        ([load(1, share=1.0), load(2, share=1.0)], 3),
    ],
)
def test_the_load_is_divided_by_what_each_should_have(loads, expected):
    assert desired_servers(loads, SCALING) == expected


def demands(*numbers: int) -> list[Demand]:
    """What was wanted, every ten seconds up to now, which is 0."""
    return [Demand(-10.0 * ago, one) for ago, one in enumerate(numbers[::-1])][::-1]


@pytest.mark.parametrize(
    ("num_servers", "record", "expected"),
    [
        (1, [], 1),
        (1, [3], 1),  # too short a record
        (1, [3, 3], 3),
        (1, [2, 3], 2),
        (1, [3, 1], 1),
        (2, [1] * 6, 2),  # fifty seconds
        (2, [1] * 7, 1),
        (3, [1, 1, 1, 2, 1, 1, 1], 2),  # the most that was wanted
        (2, [1, 1, 1, 2, 1, 1, 1], 2),
        (2, [1, 1, 1, 1, 1, 3, 3], 3),
        (9, [], 4),  # the bounds hold whatever was wanted
    ],
)
def test_a_number_changes_for_what_has_been_wanted_for_a_while(num_servers, record, expected):
    assert decide(num_servers, demands(*record), 0.0, SCALING) == expected


def test_bounds_the_wrong_way_round_are_refused():
    with pytest.raises(ConfigError, match="min_servers must be at most max_servers, 2, got 3"):
        validate(DraftScaling, {"min_servers": 3, "max_servers": 2})
