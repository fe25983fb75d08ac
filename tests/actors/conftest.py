"""The embedded pair as a pipeline, and what the roles must agree on."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from actors.pipeline import Pipeline
from actors.settings import PipelineConfig, parse_pipeline
from diffuspec.core.interfaces import ServiceStatus, TargetInfo
from diffuspec.rpc.security import Security, new_token
from diffuspec.text.tokenizer import load_tokenizer, vocabulary_digest

CPU = {"device": "cpu"}
CERTIFICATES = Path(__file__).parents[2] / "deploy" / "cluster" / "certificates.sh"


async def idle_status(pipeline: Pipeline) -> ServiceStatus:
    """Return the status once the slots of all answers are free: workers release them first."""
    for _ in range(50):
        status = await pipeline.status()
        if not status.num_running:
            return status
        await asyncio.sleep(0.1)
    raise AssertionError(f"{status.num_running} requests still run after 5 seconds")


def tiny_pipeline(engine: dict[str, Any] | None = None, **sections: Any) -> PipelineConfig:
    """Return the embedded pair's pipeline on CPUs, small and soon ready."""
    given = {"preset": "tiny", "drafter": CPU, **(engine or {})}
    target = {**CPU, "max_sequences": 2, "max_model_len": 512, **given.get("target", {})}
    coordinator = {"profile_seconds": 0, **given.get("coordinator", {})}
    given |= {"target": target, "coordinator": coordinator}
    return parse_pipeline({"engine": given, **sections})


def make_certificates(folder: Path) -> dict[str, Path]:
    """Make an authority and a node's certificate as on a cluster; return the node's files."""
    authority, node = folder / "authority", folder / "node"
    for arguments in (("authority", authority), ("node", authority, node)):
        subprocess.run(["bash", CERTIFICATES, *arguments], check=True, capture_output=True)
    return {"ca": node / "ca.pem", "certificate": node / "node.pem", "key": node / "node.key"}


@pytest.fixture(scope="session")
def pipeline() -> PipelineConfig:
    return tiny_pipeline()


@pytest.fixture(scope="session")
def security() -> Security:
    return Security(new_token())


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
