"""The table of drafts that engines look up on their device."""

from __future__ import annotations

import random

import pytest
import torch

from diffuspec_client.draft_table import MISS, DraftTable
from tests.support.gpu import DEVICES


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def look_up(table: DraftTable, *texts: list[int]) -> list[list[int]]:
    """Look up requests that are in the rows 0, 1 and so on."""
    device = table.device
    token_ids = torch.zeros((len(texts), 32), dtype=torch.int32, device=device)
    for row, text in enumerate(texts):
        token_ids[row, : len(text)] = torch.tensor(text, dtype=torch.int32)
    lengths = torch.tensor([len(text) for text in texts], dtype=torch.int32, device=device)
    rows = torch.arange(len(texts), device=device)
    return table.lookup(rows, lengths, token_ids).tolist()


def test_a_draft_is_found_by_accepted_tokens_and_the_next_one(device: torch.device):
    table = DraftTable(2, 3, device)
    table.add(0, 4, [7], [1, 2, 3])
    table.add(0, 4, [5, 6], [8])
    table.add(1, 2, [7], [9, 9])
    assert look_up(table, [0, 0, 0, 0, 7], [0, 0, 7]) == [[MISS] * 3] * 2  # not published yet
    table.publish()
    assert look_up(table, [0, 0, 0, 0, 7], [0, 0, 7]) == [[1, 2, 3], [9, 9, MISS]]
    assert look_up(table, [0, 0, 0, 0, 5, 6], [0, 0, 0, 7]) == [[8, MISS, MISS], [MISS] * 3]


@pytest.mark.parametrize("text", [[0] * 4, [0] * 4 + [6], [0] * 4 + [7, 7], [7], [0] * 3 + [7]])
def test_what_was_not_drafted_for_is_a_miss(device: torch.device, text: list[int]):
    table = DraftTable(1, 2, device)
    table.add(0, 4, [7], [1])
    table.publish()
    assert look_up(table, text) == [[MISS, MISS]]


@pytest.mark.parametrize(
    ("row", "path", "draft"),
    [
        (0, [], [1]),
        (0, [1] * 4, [1]),
        (0, [1], []),
        (0, [1], [1] * 3),
        (0, [1], [-1]),
        (9, [1], [1]),
    ],
)
def test_an_outcome_that_does_not_fit_is_left_out(
    device: torch.device, row: int, path: list[int], draft: list[int]
):
    table = DraftTable(1, 2, device)
    table.add(row, 0, path, draft)
    table.publish()
    assert look_up(table, [*path, 0]) == look_up(table, path or [0]) == [[MISS, MISS]]


def test_the_newest_outcomes_are_kept_and_a_row_can_be_cleared(device: torch.device):
    table = DraftTable(1, 1, device, num_outcomes=2)
    for token in (1, 2, 3):
        table.add(0, 0, [token], [token + 10])
    table.publish()
    assert [look_up(table, [token])[0][0] for token in (1, 2, 3)] == [MISS, 12, 13]
    table.clear(0)
    table.publish()
    assert [look_up(table, [token])[0][0] for token in (1, 2, 3)] == [MISS] * 3


def test_lookups_are_those_of_a_dictionary(device: torch.device):
    chance = random.Random(3)
    table, known = DraftTable(4, 4, device, num_outcomes=64), dict[tuple[int, ...], list[int]]()
    texts = [[chance.randrange(3) for _ in range(chance.randrange(1, 12))] for _ in range(400)]
    for text in texts[:120]:
        row, size = chance.randrange(4), chance.randrange(1, min(len(text), 5) + 1)
        draft = [chance.randrange(9) for _ in range(chance.randrange(1, 5))]
        key = (row, len(text) - size, *text[-size:])
        if key not in known:
            known[key] = draft
            table.add(row, len(text) - size, text[-size:], draft)
    table.publish()
    num_hits = 0
    for text in texts:
        for row, found in enumerate(look_up(table, *[text] * 4)):
            keys = [(row, len(text) - size, *text[-size:]) for size in range(1, 6)]
            wanted = [known[key] for key in keys if key in known and key[1] >= 0]
            assert [one for one in found if one != MISS] in (wanted or [[]])
            num_hits += bool(wanted)
    assert num_hits > 100
