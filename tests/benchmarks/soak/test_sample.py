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
    """Return a sample of processes whose descriptors are as many as the requests."""
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


def test_processes_that_are_killed_while_they_warm_up_say_nothing():
    samples = [sample(100 * n, {(n // 9, 0.0): 10 * (n % 9)}) for n in range(29)]
    assert growth_mib(samples) == 0


def test_too_few_samples_say_nothing():
    assert growth_mib([sample(100 * n, {FIRST: 50 + n}) for n in range(5)]) == 0


def test_descriptors_grow_from_the_first_third_to_the_last_in_processes_that_stay():
    stays: list[dict[ProcessId, float]] = [{FIRST: 50, SECOND: 50}] * 8
    stays.append({SECOND: 50, THIRD: 50})
    samples = [sample(number, sizes) for number, sizes in enumerate(stays)]
    assert more_descriptors(samples) == {"verifier (2)": 6}
    assert more_descriptors(samples[:2]) == {}


def test_a_port_on_which_nothing_listens_has_no_processes():
    taken = take(free_port(), 3)
    assert (taken.num_requests, taken.processes, taken.resident_mib) == (3, {}, 0)
