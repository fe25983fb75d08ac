"""A batch in one process: a row that cannot be answered fails alone, in the words of its body."""

from deploy.batches.in_process import BackendService
from deploy.batches.results import answered
from diffuspec.serve.server import EngineBackend
from tests.support.service import MODEL, fake_engine


async def test_a_row_with_a_form_that_cannot_be_fails_alone(tmp_path):
    async with fake_engine(folder=tmp_path) as engine:
        service = BackendService(EngineBackend(engine, MODEL), 2, 60.0)
        body = {"model": MODEL, "prompt": "a", "max_tokens": 2}
        failed = await service.ask("/v1/completions", {**body, "guided_regex": "("}, "1")
        assert failed.status_code == 400 and failed.body["error"]["param"] == "guided_regex"
        assert failed.body["error"]["message"].startswith("guided_regex cannot be used: ")
        reply = await service.ask("/v1/completions", {**body, "guided_regex": "a+"}, "2")
        assert reply.status_code == 200 and reply.ignored == ()


async def test_a_row_names_its_keys_that_have_no_effect():
    async with fake_engine() as engine:
        service = BackendService(EngineBackend(engine, MODEL), 2, 60.0)
        body = {"prompt": "a", "max_tokens": 2, **{f"zzz{place}": 1 for place in range(9)}}
        reply = await service.ask("/v1/completions", body, "1")
    row = answered(1, 2, "a", reply)
    assert row["response"]["ignored"] == [f"zzz{place}" for place in range(8)]
