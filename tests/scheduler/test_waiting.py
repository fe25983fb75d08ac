"""The order of waiting requests: keys take turns."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest

from diffuspec.core.errors import OverloadedError
from diffuspec.core.params import SamplingParams
from diffuspec.scheduler.admission import Admission
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.waiting import WaitingRequests
from diffuspec.telemetry import context
from diffuspec.telemetry.metrics import Metrics
from tests.support.stage import Stage, make_request, on_stage


def request_of(key_name: str) -> Request:
    """Return a request that was sent with a key."""
    request = make_request()
    request.key_name = key_name
    return request


def start(stage: Stage, key_name: str, number: int) -> asyncio.Task[list[int]]:
    """Send a prompt of one token with a key."""
    sender = copy_context()
    sender.run(context.key_name.set, key_name)
    sampling = SamplingParams(max_tokens=2, ignore_eos=True)
    return asyncio.create_task(stage.tokens([number], sampling), context=sender)


@pytest.mark.virtual_time
async def test_a_key_with_many_requests_does_not_delay_another_by_more_than_a_turn():
    async with on_stage(None, max_sequences=1) as stage:
        stage.verifier.gate.close()
        many = [start(stage, "alice", n) for n in range(1, 41)]
        await stage.verifier.gate.arrival()
        few = [start(stage, "bob", n) for n in (41, 42)]
        await asyncio.sleep(0)
        stage.verifier.gate.open()
        await asyncio.gather(*many, *few)
        prompts = [int(batch[0].prefix[0]) for batch in stage.verifier.batches]
        order = list(dict.fromkeys(prompts))
        assert order == [1, 2, 41, 3, 42, *range(4, 41)]


def test_keys_take_turns_and_each_keeps_its_order():
    waiting = WaitingRequests()
    sent = [request_of(name) for name in ("a", "a", "a", "b", "b", "", "c")]
    for request in sent:
        waiting.put(request)
    assert len(waiting) == 7 and set(waiting) == set(sent)
    taken = [waiting.take() for _ in range(4)]
    assert taken == [sent[0], sent[3], sent[5], sent[6]]
    waiting.put(late := request_of("c"))
    waiting.remove(sent[1])
    waiting.remove(sent[0])  # it has left already
    assert [waiting.take() for _ in range(3)] == [sent[2], sent[4], late]
    assert not waiting


def test_a_key_that_fills_the_queue_leaves_places_for_others():
    admission = Admission(1, 4, Metrics())
    for _ in range(5):
        admission.check_load()
        admission.submit(request_of("alice"))
        admission.admit()

    def num_accepted(key_name: str) -> int:
        context.key_name.set(key_name)
        for number in range(8):
            try:
                admission.check_load()
            except OverloadedError:
                return number
            admission.submit(request_of(key_name))
        raise AssertionError

    outside = copy_context()
    accepted = {name: outside.run(num_accepted, name) for name in ("alice", "bob", "carol", "d")}
    assert accepted == {"alice": 0, "bob": 2, "carol": 1, "d": 1}
    assert outside.run(num_accepted, "e") == 0  # the shares are less than one place


def test_resumed_requests_of_a_key_are_bounded_while_others_wait():
    admission, outside = Admission(1, 4, Metrics()), copy_context()
    for _ in range(5):
        admission.submit(request_of("alice"))
        admission.admit()
    outside.run(context.key_name.set, "bob")
    for _ in range(5):  # as many as a whole coordinator has
        outside.run(admission.check_load, is_resumed=True)
        request = request_of("bob")
        request.is_resumed = True
        admission.submit(request)
    with pytest.raises(OverloadedError, match="9 requests are waiting"):
        outside.run(admission.check_load, is_resumed=True)
