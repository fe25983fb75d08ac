"""Calls of a role's blocking work."""

from __future__ import annotations

import threading

import pytest

from diffuspec.models import worker as workers
from diffuspec.models.worker import Worker, work_inline


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


async def test_in_a_process_without_threads_calls_run_in_the_callers(monkeypatch):
    monkeypatch.setattr(workers, "_threads_pay", True)  # again after the test
    assert await Worker("role", is_inline=False).run(threading.get_ident) != threading.get_ident()
    work_inline()
    assert await Worker("role", is_inline=False).run(threading.get_ident) == threading.get_ident()
