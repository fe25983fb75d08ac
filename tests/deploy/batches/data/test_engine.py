"""Large batches: parts survive kills, and pipelines of a pool share them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from deploy.batches.data.engine import answer_shard
from deploy.batches.data.parts import Parts
from deploy.batches.data.shards import plan
from deploy.batches.run import Options
from deploy.batches.summary import Tally
from diffuspec.core.errors import ConfigError
from tests.support.batches import Echo, Stuck, chat, results_in, texts
from tests.support.forked import forked

PIPELINE = """
engine: {preset: tiny, target: {device: cpu}, drafter: {kind: pld}}
placement: {coordinator: {num_cpus: 0.25}, drafter: {num_cpus: 0.25}, verifier: {num_cpus: 0.25}}
"""
ROOT = Path(__file__).parents[4]
HOW = Options(2, 60.0, {}, {})
BATCH = {"input": "a", "options": "{}", "format": "jsonl"}


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    found = Parts(tmp_path / "out", "jsonl")
    found.claim(BATCH)
    return found


async def test_a_part_is_whole_when_it_has_its_name_and_its_figures(written, parts):
    [shard] = plan(written(chat("a"), chat("wrong")), 1000).shards
    assert parts.done(shard.name) is None
    tally = await answer_shard(shard, parts, Echo(), HOW)
    assert (tally.num_rows, tally.num_failed) == (2, 1)
    assert parts.done(shard.name) == tally
    first, second = results_in(parts.folder / "part-00000-000000.jsonl")
    assert texts([first]) == ["<a>"] and second["response"]["status_code"] == 400
    assert not parts.partial(shard.name).exists()


async def test_a_part_goes_on_after_a_kill_and_a_kill_between_its_files(written, parts):
    [shard] = plan(written(*(chat(str(i)) for i in range(9))), 1000).shards
    service = Stuck(4)
    running = asyncio.create_task(answer_shard(shard, parts, service, HOW))
    await service.hangs.wait()
    running.cancel()
    await asyncio.wait([running])
    assert len(results_in(parts.partial(shard.name))) == 4 and parts.done(shard.name) is None
    rest = Echo()
    assert (await answer_shard(shard, parts, rest, HOW)).num_rows == 9
    assert len(rest.bodies) == 5
    (parts.folder / "_done" / f"{shard.name}.json").unlink()  # as a kill before the mark
    assert (await answer_shard(shard, parts, Echo(), HOW)).num_rows == 9
    assert len(texts(results_in(parts.folder / f"{shard.name}.jsonl"))) == 9


async def test_results_as_parquet_are_the_same(written, parts):
    [shard] = plan(written(chat("a", custom_id="x"), "{"), 1000).shards
    await answer_shard(shard, replace(parts, format="parquet"), Echo(), HOW)
    rows = parquet.read_table(parts.folder / f"{shard.name}.parquet").to_pylist()
    first, second = sorted(rows, key=lambda row: str(row["id"]))
    assert (first["custom_id"], first["status_code"], first["error"]) == ("x", 200, None)
    assert json.loads(first["response"])["body"]["choices"][0]["message"]["content"] == "<a>"
    assert second["response"] is None and json.loads(second["error"])["code"] == "invalid_json"


@pytest.mark.parametrize("key", BATCH)
def test_a_folder_of_another_batch_is_refused(parts, key):
    parts.claim(BATCH)
    with pytest.raises(ConfigError, match=f"results of another batch: its {key} was not the same"):
        parts.claim(BATCH | {key: "other"})


def test_a_part_without_rows_is_whole(written, parts):
    *_, empty = plan(written(chat("a" * 100)), 60).shards
    assert asyncio.run(answer_shard(empty, parts, Echo(), HOW)) == Tally()


@pytest.mark.process
@pytest.mark.timeout(300)
def test_pipelines_of_a_pool_share_a_batch(cluster, written, tmp_path):
    source = written(*(chat(f"What is {number} plus 2?") for number in range(6)))
    size = source.stat().st_size // 3 + 1
    command = forked("-m", "deploy.batch", "--engine", "data", "--pipelines", 2)
    command += ["--input", str(source), "--output", str(tmp_path / "out")]
    command += ["--shard-bytes", str(size), "--max-tokens", "8"]
    config = tmp_path / "pipeline.yaml"
    config.write_text(PIPELINE)
    command += ["--config", str(config)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rows answered" in done.stdout
    parts = sorted((tmp_path / "out").glob("*.jsonl"))
    assert len(parts) == 3
    assert len(texts([one for part in parts for one in results_in(part)])) == 6
