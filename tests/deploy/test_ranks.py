"""Two verifier ranks as processes of their own, without Ray."""

import signal
from pathlib import Path

import pytest

from tests.deploy.test_grpc import Role

pytestmark = pytest.mark.process

CONFIG = """
engine: {preset: tiny, target: {device: cpu, max_sequences: 2, max_model_len: 512}}
placement: {verifier: {tensor_parallel: 2}}
deadlines: {start_seconds: 900}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(CONFIG)
    return path


def test_a_following_rank_ends_on_sigterm(config):
    with Role(config, "--role", "verifier") as first:
        meeting_point = first.line().removeprefix("meeting point ")
        rank = ("--rank", "1", "--meeting-point", meeting_point)
        with Role(config, "--role", "verifier", *rank) as second:
            assert first.line().startswith("127.0.0.1:")  # both serve
            ends_on_sigterm(second)


def test_a_rank_waiting_for_the_others_ends_on_sigterm(config):
    with Role(config, "--role", "verifier") as first:
        assert first.line().startswith("meeting point ")
        ends_on_sigterm(first)


def ends_on_sigterm(role: Role) -> None:
    role.process.send_signal(signal.SIGTERM)
    code, said = role.end()
    assert code == 0 and "Traceback" not in said
