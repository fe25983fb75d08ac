"""A batch as a job of Ray, on a cluster of its own with the real server of jobs."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from diffuspec.bench.questions import load_questions
from diffuspec.pairs.tiny import QUESTIONS
from tests.support.batches import results_in
from tests.support.ports import free_port

T = TypeVar("T")
ROOT = Path(__file__).parents[2]
PIPELINE = "engine: {preset: tiny, target: {device: cpu, max_model_len: 512}, drafter: null}\n"

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def jobs() -> Iterator[JobSubmissionClient]:
    """A server of jobs; what it is asked may fail at first, for it comes up in parts."""
    from tests.support.ray_cluster import local_cluster

    port = free_port()
    with local_cluster(dashboard_port=port):
        yield at_last(lambda: JobSubmissionClient(f"http://127.0.0.1:{port}"))


def at_last(call: Callable[[], T]) -> T:
    while True:
        try:
            return call()
        except (ConnectionError, RuntimeError):
            time.sleep(0.2)


def log_of(jobs: JobSubmissionClient, *arguments: object) -> str:
    """Run a batch as a job, from the checkout as the documents have it; return what it says."""
    words = [sys.executable, "-m", "deploy.batch", *map(str, arguments)]
    command, files = shlex.join(words), {"working_dir": str(ROOT)}
    name = at_last(lambda: jobs.submit_job(entrypoint=command, runtime_env=files))
    while not (status := jobs.get_job_status(name)).is_terminal():
        time.sleep(0.2)
    log: str = jobs.get_job_logs(name)
    assert status == JobStatus.SUCCEEDED, log
    return log


def test_a_job_answers_a_batch_on_the_cluster_that_runs_it(jobs, tmp_path):
    config, output = tmp_path / "pipeline.yaml", tmp_path / "out.jsonl"
    config.write_text(PIPELINE)
    files = ("--config", config, "--input", QUESTIONS, "--output", output)
    assert "rows answered" in log_of(jobs, *files, "--limit", 3, "--max-tokens", 16)
    results = results_in(output)
    asked = load_questions(QUESTIONS)[:3]
    assert [result["custom_id"] for result in results] == [str(one.question_id) for one in asked]
    for result, question in zip(results, asked, strict=True):
        turns = result["response"]["body"]["turns"]
        assert len(turns) == len(question.turns)
        assert all(turn["usage"]["completion_tokens"] for turn in turns)
