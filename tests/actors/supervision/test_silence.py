"""A role that hangs is given up after three checks, one behind a dead link when that is back."""

from collections.abc import Iterable

import pytest

from actors.supervision import silence
from actors.supervision.silence import Silence


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each check whether the role's machine can be reached."""
    links: list[bool] = []

    async def is_reachable(address: str, seconds: float) -> bool:
        return links.pop(0)

    monkeypatch.setattr(silence, "_is_reachable", is_reachable)
    return links


async def num_checks(links: list[bool], given: Iterable[bool]) -> int:
    links += given
    role, num_given = Silence("a:1", 2.0), len(links)
    while links:
        if await role.is_final():
            return num_given - len(links)
    raise AssertionError("it never counts as dead")


async def test_a_role_that_hangs_is_dead_after_three_checks(links):
    assert await num_checks(links, [True] * 9) == 3


async def test_what_a_dead_link_delays_is_waited_for_as_long_again(links):
    assert await num_checks(links, [False] * 3 + [True] * 9) == 3 + 3 + 3


async def test_a_link_that_stays_down_counts_in_the_end(links):
    assert await num_checks(links, [False] * 99) == 31


async def test_an_answer_ends_it(links):
    links += [True, True, True]
    role = Silence("a:1", 2.0)
    assert not await role.is_final() and not await role.is_final()
    role.end()
    assert not await role.is_final()


async def test_a_port_that_refuses_and_a_process_that_hangs_are_reached():
    assert await silence._is_reachable("127.0.0.1:1", 1.0)
    assert not await silence._is_reachable("192.0.2.255:1", 0.05)
