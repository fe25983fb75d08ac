"""Calls of a role's blocking work."""

from __future__ import annotations

import threading

import pytest

from diffuspec.models.worker import Worker


@pytest.mark.parametrize("is_inline", [True, False])
async def test_a_posted_call_runs_before_later_ones(is_inline):
    worker, calls = Worker("role", is_inline), list[int]()
    worker.post(calls.append, 1)
    await worker.run(calls.append, 2)
    worker.post(calls.append, 3)
    worker.close()
    assert calls == [1, 2, 3]


def test_a_posted_call_is_not_waited_for():
    worker, may_end, calls = Worker("role", is_inline=False), threading.Event(), list[bool]()
    worker.post(lambda: calls.append(may_end.wait()))
    assert not calls
    may_end.set()
    worker.close()
    assert calls == [True]
