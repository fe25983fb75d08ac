"""The embedded pair as a pipeline, and what the roles must agree on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from actors.settings import PipelineConfig, parse_pipeline
from diffuspec.core.interfaces import TargetInfo
from diffuspec.rpc.security import new_token
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest

CPU = {"device": "cpu"}
NODE = {"num_gpus": 0, "object_store_memory": 100 * 2**20}

_REPORTS: pytest.StashKey[list[str]] = pytest.StashKey()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print something once all tests are through."""
    reports = request.config.stash.setdefault(_REPORTS, [])
    return reports.append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for text in config.stash.get(_REPORTS, []):
        terminalreporter.write_line(f"\n{text}")


def tiny_pipeline(engine: dict[str, Any] | None = None, **sections: Any) -> PipelineConfig:
    """Return the embedded pair's pipeline on CPUs, two requests at a time."""
    given = {"preset": "tiny", "target": {**CPU, "max_sequences": 2}, "drafter": CPU}
    return parse_pipeline({"engine": {**given, **(engine or {})}, **sections})


@pytest.fixture(scope="session")
def pipeline() -> PipelineConfig:
    return tiny_pipeline()


@pytest.fixture(scope="session")
def token() -> str:
    return new_token()


@pytest.fixture(scope="session")
def target_info(pipeline: PipelineConfig) -> TargetInfo:
    """What a verifier of the embedded target says of it."""
    tokenizer = load_tokenizer(pipeline.engine.target.path)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    return TargetInfo(vocab_size, max_model_len=512, max_sequences=2, eos_token_ids=(0,))


@pytest.fixture(scope="session")
def vocabulary(pipeline: PipelineConfig, target_info: TargetInfo) -> str:
    tokenizer = load_tokenizer(pipeline.engine.target.path)
    return vocabulary_digest(tokenizer, target_info.vocab_size)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Start a Ray cluster of one node that claims eight CPUs, whatever the machine has.

    Tests may add nodes, and remove the nodes that they added.
    """
    directory = tempfile.mkdtemp(prefix="ray")  # short: sockets are named below it
    variables = {
        "RAY_TMPDIR": directory,  # `Cluster` writes its address below it, not below /tmp/ray
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_worker_niceness": "0",  # actors are as quick as the processes around them
        "RAY_health_check_period_ms": "1000",  # a node that is stopped is missed within seconds
        "RAY_health_check_timeout_ms": "2000",
    }
    head = {**NODE, "num_cpus": 8, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()
    shutil.rmtree(directory, ignore_errors=True)
