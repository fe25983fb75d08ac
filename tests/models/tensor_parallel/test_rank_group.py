"""Ranks join a group, and notice ranks that are lost, late or out of step."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from diffuspec.core.errors import DiffuspecError, ModelLoadError, VerifierUnavailableError
from diffuspec.models.target import CausalTarget
from diffuspec.models.tensor_parallel import lockstep
from diffuspec.models.tensor_parallel.rank_group import (
    RankGroup,
    RankLimits,
    find_meeting_point,
    open_meeting_point,
)
from tests.models.tensor_parallel.follower import HOST, LIMITS, Membership, config
from tests.models.tensor_parallel.processes import CPU, Follower, Ranks, save_family
from tests.models.test_target import PROMPT, request

pytestmark = pytest.mark.process


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Ranks]:
    """A group that may be broken."""
    follower = Follower()
    with Ranks(config(save_family(tmp_path, "qwen2")), [follower]) as ranks:
        yield ranks
    follower.close()


async def test_the_loss_of_a_rank_is_noticed_at_once(other: Ranks) -> None:
    await other.target.verify([request(PROMPT)])
    other.followers[0].close()
    started = time.monotonic()
    with pytest.raises(VerifierUnavailableError, match="rank 0 lost another rank"):
        await other.target.verify([request(PROMPT)])
    assert time.monotonic() - started < 10  # not the half hour of gloo
    with pytest.raises(VerifierUnavailableError, match="lost"):
        await other.target.verify([request(PROMPT)])
    with pytest.raises(VerifierUnavailableError, match="lost"):
        await other.target.watch()


async def test_ranks_that_disagree_give_no_verdict(
    other: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    await other.target.verify([request(PROMPT)])
    with monkeypatch.context() as patch:
        patch.setattr(lockstep, "_digest", lambda _: 42)
        with pytest.raises(VerifierUnavailableError, match=r"different verdicts in step 2: \[42, "):
            await other.target.verify([request(PROMPT)])
    assert "different verdicts in step 2" in other.followers[0].hear()


def load_apart(mine: Path, its: Path, error: type[DiffuspecError], match: str) -> str:
    """Load a share from one directory here, and rank 1's from another; return its last line."""
    store, follower = open_meeting_point(HOST, LIMITS), Follower()
    settings = config(its).model_dump(mode="json")
    follower.say(Membership(store.port, 1, 2, settings).to_line())
    with RankGroup(store, 0, 2, CPU, LIMITS) as group:
        with pytest.raises(error, match=match), group.loading():
            CausalTarget.load(config(mine), 2)
        said = follower.hear()
    follower.close()
    return said


@pytest.mark.parametrize("failing", [0, 1])
def test_ranks_name_the_one_that_cannot_load(tmp_path: Path, failing: int) -> None:
    good = save_family(tmp_path / "good", "qwen2")
    bad = shutil.copytree(good, tmp_path / "bad")
    (bad / "model.safetensors").unlink()
    reason = f"rank {failing}: {bad} has no model.safetensors"
    if failing:
        assert reason in load_apart(good, bad, VerifierUnavailableError, reason)
    else:
        said = load_apart(bad, good, ModelLoadError, reason)
        assert reason in said or "rank 1 lost another rank" in said


def test_ranks_load_the_same_model(tmp_path: Path) -> None:
    path = save_family(tmp_path / "one", "qwen2")
    other = shutil.copytree(path, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    match = "(one|other) differs from the directory of another rank: copy the same one"
    said = load_apart(path, other, DiffuspecError, match)
    assert "differs from the directory of another rank" in said


def test_a_group_names_the_ranks_that_did_not_join() -> None:
    limits = RankLimits(meet_seconds=0.5)
    store = open_meeting_point(HOST, limits)
    with pytest.raises(
        VerifierUnavailableError, match=r"rank 0 waited 0\.5 seconds at .* for rank 1"
    ):
        RankGroup(store, 0, 2, CPU, limits)


def test_a_rank_names_the_address_at_which_rank_0_does_not_answer() -> None:
    with socket.socket() as silent:
        silent.bind((HOST, 0))  # the port stays this test's, and nothing listens there
        port = silent.getsockname()[1]
        with pytest.raises(VerifierUnavailableError, match=f"no.* answer at {HOST}:{port} within"):
            find_meeting_point(HOST, port, RankLimits(meet_seconds=0.5))
