"""Slots of a service at rest."""

from dataclasses import replace

from benchmarks.soak.slots import lost_slots
from diffuspec.bench.http_client import HttpClient
from diffuspec.serve.settings import ServeSettings
from tests.support.checkpoints import NUM_IDS
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.service import fake_engine, serving


async def lost_of_two(max_sequences: int) -> str | None:
    target = replace(FAKE_TARGET, vocab_size=NUM_IDS, max_sequences=max_sequences)
    with serving(lambda: fake_engine(FakeVerifier(target)), ServeSettings()) as service:
        async with HttpClient(service.url) as http:
            return await lost_slots(http, 2)


async def test_requests_that_decode_at_once_have_their_slots():
    assert await lost_of_two(max_sequences=2) is None


async def test_a_slot_that_is_lost_is_noticed():
    assert await lost_of_two(max_sequences=1) == "1 of 2 requests waited for another's end"


async def test_a_service_that_does_not_answer_is_told():
    async with HttpClient("http://127.0.0.1:1") as http:
        assert "a request at rest fails" in str(await lost_slots(http, 2))
