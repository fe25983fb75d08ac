"""The directory knows the pipelines that announce themselves, and forgets the others."""

from dataclasses import replace

import pytest

from actors.service.directory import EXPIRY_SECONDS, Directory, Member
from diffuspec.rpc.security import Security
from tests.support.virtual_time import Clock


def member(name: str) -> Member:
    return Member(name, "127.0.0.1:7000", Security("secret"), None)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(clock: Clock) -> Directory:
    return Directory(clock)


async def test_the_latest_announcement_of_each_pipeline_counts(directory):
    await directory.announce(member("b"))
    await directory.announce(member("a"))
    draining = replace(member("b"), accepts_requests=False)
    await directory.announce(draining)
    assert await directory.pipelines() == (member("a"), draining)


async def test_a_pipeline_that_leaves_is_gone_with_its_series(directory):
    await directory.announce(member("a"))
    await directory.announce_metrics("a", "series 1\n")
    assert await directory.metrics() == {"a": "series 1\n"}
    await directory.leave("a")
    await directory.leave("unknown")
    assert await directory.pipelines() == () and await directory.metrics() == {}


async def test_a_pipeline_that_stops_announcing_itself_is_forgotten(directory, clock):
    await directory.announce(member("a"))
    await directory.announce_metrics("a", "series 1\n")
    clock.now += EXPIRY_SECONDS
    await directory.announce(member("b"))
    assert len(await directory.pipelines()) == 2
    clock.now += 0.1
    assert await directory.pipelines() == (member("b"),) and await directory.metrics() == {}


async def test_series_that_come_after_a_pipeline_has_left_are_not_kept(directory):
    await directory.announce_metrics("a", "series 1\n")
    assert await directory.metrics() == {}
    await directory.announce(member("a"))
    assert await directory.metrics() == {}


def test_a_token_is_not_shown():
    assert "secret" not in repr(member("a"))
