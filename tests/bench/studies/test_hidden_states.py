"""The study of hidden states on the wire, over real servers on loopback."""

import pytest

from diffuspec.bench.studies.hidden_states import (
    NUM_LAYERS,
    NUM_ROWS,
    TARGETS,
    TransferCost,
    measure,
    study_transfers,
    transfer_table,
)


async def test_the_bytes_of_a_step_are_those_of_its_rows():
    cost = await measure("any", num_columns=48, num_rows=7, num_calls=2)
    assert cost.row_bytes == 2 * NUM_LAYERS * 48
    for num_bytes in (cost.draft_bytes, cost.verify_bytes):
        assert 7 * cost.row_bytes <= num_bytes <= 7 * cost.row_bytes + 100


def test_the_time_on_a_network_follows_from_the_bytes():
    cost = TransferCost("any", 4, 50_000, 200_000, 200_000, 0.001, 0.001)
    assert cost.wire_seconds(25e9) == pytest.approx(64e-6)


def test_every_target_has_a_row_for_every_number_of_rows():
    costs = study_transfers(num_calls=1)
    found = [(cost.target, cost.num_rows) for cost in costs]
    assert found == [(name, rows) for name in TARGETS for rows in NUM_ROWS]
    assert len(transfer_table(costs).cells) == len(costs)
