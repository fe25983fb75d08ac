"""What an engine process takes of its machine."""

from __future__ import annotations

import pytest

from diffuspec.data_parallel.worker import own_gpu


@pytest.mark.parametrize(
    ("index", "num_gpus", "visible", "own"),
    [
        (1, 0, "", None),
        (1, 1, "3", None),
        (1, 4, "", "1"),
        (5, 4, "", "1"),
        (1, 2, "6, 7", "7"),
        (2, 2, "GPU-a,GPU-b", "GPU-a"),
    ],
)
def test_processes_take_the_gpus_by_turns(index: int, num_gpus: int, visible: str, own: str | None):
    assert own_gpu(index, num_gpus, visible) == own
