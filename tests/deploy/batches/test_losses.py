"""A row that kills its process fails, and the batch goes on: in a real process, without Ray."""

from __future__ import annotations

import json

import pytest

from deploy.batches import engine_process
from deploy.batches.inputs import jsonl_file, read, scan
from deploy.batches.outputs import open_output
from deploy.batches.places import in_process
from deploy.batches.run import Options, Run
from deploy.batches.summary import Counts
from diffuspec.text.prompt import encode_prompt
from diffuspec.text.tokenizer import load_tokenizer
from tests.actors.conftest import tiny_pipeline
from tests.support import deadly_worker
from tests.support.batches import chat, results_in
from tests.support.forked import forked

pytestmark = pytest.mark.process


async def test_a_row_that_kills_its_process_fails_and_the_batch_goes_on(
    written, tmp_path, monkeypatch
):
    config = tiny_pipeline()
    rows = [chat(text, max_tokens=20) for text in ("Who are you?", "Hi!", "Why?", "Where?")]
    tokenizer = load_tokenizer(config.engine.target.path)
    deadly = encode_prompt(rows[1]["messages"], tokenizer, 512).tolist()
    monkeypatch.setenv(deadly_worker.DEADLY, json.dumps(deadly))
    monkeypatch.setenv(deadly_worker.DEATHS, str(tmp_path / "deaths"))
    monkeypatch.setattr(engine_process, "PYTHON", tuple(forked(deadly_worker.__file__)))
    source, output = jsonl_file(written(*rows)), tmp_path / "out.jsonl"
    index, counts = scan(source), Counts(4)
    with open_output(output, index, counts.before.add) as results:
        async with in_process(config).service() as service:
            lines = read(source, index, results.done)
            await Run(service, results, Options(None, 60.0, {}, {}), counts.now.add).finish(lines)
    first, fatal, *others = [result["response"] for result in results_in(output)]
    assert [response["status_code"] for response in (first, *others)] == [200] * 3
    assert (fatal["status_code"], fatal["body"]["error"]["code"]) == (500, "fatal_request")
    deaths = (tmp_path / "deaths").read_text().split()
    assert len(deaths) == 3 and deaths[-1] == "1", "the last time alone"
