"""A batch as a job of Ray, on a cluster of its own with the real server of jobs."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.job_submission import JobSubmissionClient

from diffuspec.bench.questions import load_questions
from diffuspec.pairs.tiny import QUESTIONS
from tests.support.batches import results_in
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
PIPELINE = "engine: {preset: tiny, target: {device: cpu}, drafter: null}\n"

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def jobs() -> Iterator[str]:
    """The address of a server of jobs."""
    from tests.support.ray_cluster import local_cluster

    port = free_port()
    with local_cluster(dashboard_port=port):
        address = f"http://127.0.0.1:{port}"
        wait_for_jobs(address)
        yield address


def wait_for_jobs(address: str) -> None:
    """Wait until a job that does nothing can be submitted: the server comes up in parts."""
    while True:
        try:
            JobSubmissionClient(address).submit_job(entrypoint="true")
            return
        except (ConnectionError, RuntimeError):
            time.sleep(0.2)


def submit(jobs: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a batch as a job, from the checkout as the documents have it."""
    job = [sys.executable, "-m", "deploy.batch", *map(str, arguments)]
    return subprocess.run(
        [RAY, "job", "submit", "--address", jobs, "--working-dir", ".", "--", *job],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_job_answers_a_batch_on_the_cluster_that_runs_it(jobs, tmp_path):
    config, output = tmp_path / "pipeline.yaml", tmp_path / "out.jsonl"
    config.write_text(PIPELINE)
    files = ("--config", config, "--input", QUESTIONS, "--output", output)
    done = submit(jobs, *files, "--limit", 3, "--max-tokens", 16)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rows answered" in done.stdout and "succeeded" in done.stdout
    results = results_in(output)
    asked = load_questions(QUESTIONS)[:3]
    assert [result["custom_id"] for result in results] == [str(one.question_id) for one in asked]
    for result, question in zip(results, asked, strict=True):
        turns = result["response"]["body"]["turns"]
        assert len(turns) == len(question.turns)
        assert all(turn["usage"]["completion_tokens"] for turn in turns)
