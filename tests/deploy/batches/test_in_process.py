"""A batch in one process: a row that cannot be answered fails alone, in the words of its body."""

from deploy.batches.in_process import BackendService
from diffuspec.serve.server import EngineBackend
from tests.support.service import MODEL, fake_engine


async def test_a_row_with_a_form_that_cannot_be_fails_alone(tmp_path):
    async with fake_engine(folder=tmp_path) as engine:
        service = BackendService(EngineBackend(engine, MODEL), 2, 60.0)
        body = {"model": MODEL, "prompt": "a", "max_tokens": 2}
        failed = await service.ask("/v1/completions", {**body, "guided_regex": "("}, "1")
        assert failed.status_code == 400 and failed.body["error"]["param"] == "guided_regex"
        assert failed.body["error"]["message"].startswith("guided_regex cannot be used: ")
        answered = await service.ask("/v1/completions", {**body, "guided_regex": "a+"}, "2")
        assert answered.status_code == 200
