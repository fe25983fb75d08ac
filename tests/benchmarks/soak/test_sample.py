"""Growth of memory and descriptors of a service's processes."""

import pytest

from benchmarks.soak.sample import (
    ProcessId,
    ProcessSample,
    Sample,
    growth_mib,
    more_descriptors,
    take,
)
from tests.support.ports import free_port

MIB = 2**20
FIRST, SECOND, THIRD = (1, 0.0), (2, 0.0), (3, 0.0)


def sample(num_requests: int, sizes: dict[ProcessId, float], name: str = "verifier") -> Sample:
    return Sample(
        num_requests,
        {
            process: ProcessSample(name, int(size * MIB), num_requests)
            for process, size in sizes.items()
        },
    )


def test_growth_is_of_a_thousand_requests_in_all_processes():
    samples = [sample(100 * n, {FIRST: 50 + 0.2 * n, SECOND: 70 + 0.1 * n}) for n in range(20)]
    assert growth_mib(samples) == pytest.approx(3.0, rel=1e-3)


def test_single_jumps_are_no_growth():
    samples = [sample(100 * n, {FIRST: 90 if n in (3, 4) else 50}) for n in range(20)]
    assert growth_mib(samples) == 0


def test_a_process_that_was_started_lately_grows_like_its_predecessor():
    before = [sample(100 * n, {FIRST: 50 + 0.2 * n}) for n in range(20)]
    after = [sample(100 * n, {SECOND: 10 * n}) for n in range(20, 29)]
    assert growth_mib([*before, *after]) == pytest.approx(2.0, rel=1e-3)


def test_too_few_samples_say_nothing():
    assert growth_mib([sample(100 * n, {FIRST: 50 + n}) for n in range(5)]) == 0


def test_descriptors_are_compared_of_processes_that_are_there_before_and_after():
    before = sample(10, {FIRST: 50, SECOND: 50})
    after = sample(17, {SECOND: 50, THIRD: 50})
    assert more_descriptors(before, after) == {"verifier (2)": 7}


def test_a_port_on_which_nothing_listens_has_no_processes():
    taken = take(free_port(), 3)
    assert (taken.num_requests, taken.processes, taken.resident_mib) == (3, {}, 0)
