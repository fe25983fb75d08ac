"""A draft that is late is no reason to end its drafter: the first one reads the whole prompt."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from actors.roles import self_test
from actors.roles.drafter import DrafterActor
from actors.roles.path_scorer import PathScorerActor
from diffuspec.core.errors import DrafterError
from diffuspec.core.types import DraftRequest, Lattice
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.rpc.client.roles import RemoteDrafter
from tests.actors.conftest import tiny_pipeline

HOST = "127.0.0.1"


async def test_a_drafter_that_is_late_is_healthy_for_a_while(
    security, target_info, vocabulary, monkeypatch
):
    config = tiny_pipeline(deadlines={"draft_seconds": 1})
    scorer, drafter = PathScorerActor(config, security), DrafterActor(config, security)
    scorer_address = await scorer.start(target_info, HOST)
    address = await drafter.start(target_info, vocabulary, scorer_address, HOST)
    remote = await RemoteDrafter.connect(address, security, deadline_seconds=0.2)
    may_go_on = threading.Event()
    make_lattices = DiffusionDrafter._draft

    def draft(model: DiffusionDrafter, requests: Sequence[DraftRequest]) -> list[Lattice]:
        assert may_go_on.wait(30)
        return make_lattices(model, requests)

    monkeypatch.setattr(DiffusionDrafter, "_draft", draft)
    with pytest.raises(DrafterError, match="did not answer before the deadline"):
        await remote.draft([self_test.draft_request(target_info)])
    await asyncio.sleep(1.0)
    assert await drafter.is_healthy()
    may_go_on.set()
    await remote.close()
    await drafter.stop()
    await scorer.stop()
