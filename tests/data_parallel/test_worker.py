"""What an engine process takes of its machine."""

from __future__ import annotations

import pytest

from diffuspec.data_parallel.worker import own_gpu, own_processors


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


@pytest.mark.parametrize(
    ("index", "num_processes", "own"),
    [(0, 2, [2, 3]), (1, 2, [4, 5]), (2, 5, [4]), (3, 6, [2, 3, 4, 5, 7])],
)
def test_processes_share_the_processors(index: int, num_processes: int, own: list[int]):
    assert own_processors(index, num_processes, [2, 3, 4, 5, 7]) == own
