"""Large batches: parts survive kills, and pipelines of a pool share them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from deploy.batch import app
from deploy.batches.data.engine import answer_shard
from deploy.batches.data.parts import Parts
from deploy.batches.data.shards import plan
from deploy.batches.run import Options
from deploy.batches.summary import Tally
from diffuspec.core.errors import ConfigError
from tests.deploy.batches.data import sigterm
from tests.support.batches import Echo, Stuck, chat, results_in, texts
from tests.support.forked import forked

PIPELINE = """
engine:
  {preset: tiny, target: {device: cpu, max_model_len: 512}, drafter: {kind: pld},
   coordinator: {profile_seconds: 0}}
placement: {coordinator: {num_cpus: 0.25}, drafter: {num_cpus: 0.25}, verifier: {num_cpus: 0.25}}
"""
Command = Callable[..., list[str]]
ROOT = Path(__file__).parents[4]
HOW = Options(2, 60.0, {}, {})
BATCH = {"input": "a", "options": "{}", "format": "jsonl"}


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    found = Parts(tmp_path / "out", "jsonl")
    with found.claimed(BATCH):
        yield found


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
def test_a_folder_of_another_batch_is_refused(tmp_path, key):
    parts = Parts(tmp_path / "out", "jsonl")
    for _ in range(2):
        with parts.claimed(BATCH):
            pass
    wrong = parts.claimed(BATCH | {key: "other"})
    refused = pytest.raises(ConfigError, match=f"of another batch: its {key} was not the same")
    with refused, wrong:
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "out").touch()
    refused = pytest.raises(ConfigError, match=r"cannot write the output .*/out")
    with refused, Parts(tmp_path / "out", "jsonl").claimed(BATCH):
        pass


def test_a_part_without_rows_is_whole(written, parts):
    *_, empty = plan(written(chat("a" * 100)), 60).shards
    assert asyncio.run(answer_shard(empty, parts, Echo(), HOW)) == Tally()


@pytest.fixture
def command(written, tmp_path) -> Command:
    """Return the arguments of a batch of rows in parts of two rows each."""

    def make(num_rows: int, *options: object) -> list[str]:
        source = written(
            *(chat(f"What is {number} plus 20?") for number in range(10, 10 + num_rows))
        )
        config = tmp_path / "pipeline.yaml"
        config.write_text(PIPELINE)
        arguments = ["--engine", "data", "--input", source, "--output", tmp_path / "out"]
        arguments += ["--shard-bytes", source.stat().st_size // (num_rows // 2) + 1]
        return [str(one) for one in (*arguments, "--config", config, *options)]

    return make


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_folder_is_one_batch_s_until_it_is_killed_and_pipelines_of_a_pool_share_the_rest(
    cluster, command, tmp_path
):
    arguments, out = command(8, "--concurrency", 1, "--max-tokens", 64), tmp_path / "out"
    program = ["-m", "deploy.batch", *arguments]
    environment = {**os.environ, "RAY_ADDRESS": cluster.address}
    with subprocess.Popen([sys.executable, *program], cwd=ROOT, env=environment) as first:
        while not any(path.stat().st_size for path in out.glob("*.partial")):
            assert first.poll() is None
            time.sleep(0.05)
        first.send_signal(signal.SIGSTOP)  # it ends only when it is killed
        second = CliRunner().invoke(app, arguments)
        first.kill()
    assert first.returncode == -signal.SIGKILL
    assert second.exit_code == 2
    assert second.stderr == f"error: the output {out} is in use by another batch\n"
    rest = run(*program, "--pipelines", 2, address=cluster.address)
    assert rest.returncode == 0, rest.stderr
    assert "rows answered" in rest.stdout
    parts = sorted(out.glob("*.jsonl"))
    assert len(parts) == 4
    assert len(texts([one for part in parts for one in results_in(part)])) == 8


def run(*program: object, address: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        forked(*program),
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": address, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.process
def test_sigterm_while_ray_connects_ends_a_batch_as_at_any_time(cluster, command):
    hook = f"{sigterm.__name__}.{sigterm.stop.__name__}"  # called by ray.init
    program = ("-m", "deploy.batch", *command(2))
    ended = run(*program, address=cluster.address, RAY_RUNTIME_ENV_HOOK=hook)
    assert ended.returncode == 143
    *_, last = ended.stderr.splitlines()  # Ray says where it connects
    assert last.startswith("interrupted: 0 rows are in ") and ended.stderr.count("interrupted") == 1
