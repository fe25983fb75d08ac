"""A drafter and a path scorer behind gRPC, as plain objects: Ray is not needed."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from actors.roles import self_test
from actors.roles.drafter import DrafterActor
from actors.roles.path_scorer import PathScorerActor
from diffuspec.core.errors import ConfigError, DrafterError, NgramError, VocabularyError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import DraftRequest
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.drafters.path_search import make_path_search
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.rpc.client.roles import RemoteDrafter
from tests.actors.conftest import tiny_pipeline
from tests.support.hanging import answer_while_hanging

HOST = "127.0.0.1"


@pytest.fixture
async def scorer(pipeline, security, target_info) -> AsyncIterator[PathScorerActor]:
    actor: Any = PathScorerActor(pipeline, security)
    actor.address = await actor.start(target_info, HOST)
    yield actor
    await actor.stop()


@pytest.fixture
async def drafter(
    pipeline, security, target_info, vocabulary, scorer
) -> AsyncIterator[DrafterActor]:
    actor: Any = DrafterActor(pipeline, security)
    actor.address = await actor.start(target_info, vocabulary, scorer.address, HOST)
    yield actor
    await actor.stop()


def request(text_length: int = 20) -> DraftRequest:
    prefix = np.arange(5, 5 + text_length, dtype=np.int32)
    return DraftRequest("r", prefix, 8, "best_first", 12, 0.5, SamplingParams())


async def test_a_remote_drafter_drafts_what_a_local_one_does(
    drafter, pipeline, security, target_info
):
    remote = await RemoteDrafter.connect(drafter.address, security)
    [answer] = await remote.draft([request()])
    await remote.close()
    model = DiffusionDrafter.load(pipeline.engine.drafter, target_info)
    search = make_path_search(pipeline.engine.search, target_info, None)
    [expected] = await DiffuSpecDrafter(model, search).draft([request()])
    model.close()
    assert answer.tree == expected.tree
    assert answer.confidences == pytest.approx(expected.confidences)
    assert await drafter.is_healthy()


async def test_a_drafter_goes_on_with_another_scorer(
    drafter, scorer, pipeline, security, target_info
):
    remote = await RemoteDrafter.connect(drafter.address, security)
    before = await remote.draft([request()])
    await scorer.stop()
    with pytest.raises(DrafterError):
        await remote.draft([request()])
    with pytest.raises(DrafterError):
        await drafter.try_draft()
    other = PathScorerActor(pipeline, security)
    await drafter.use_scorer(await other.start(target_info, HOST))
    await drafter.try_draft()
    after = await remote.draft([request()])
    assert after[0].tree == before[0].tree
    await remote.close()
    await other.stop()


async def test_nothing_is_healthy_once_it_is_stopped(pipeline, security, target_info):
    actor = PathScorerActor(pipeline, security)
    assert not await actor.is_healthy()
    await actor.start(target_info, HOST)
    assert await actor.is_healthy()
    await actor.stop()
    await actor.stop()
    assert not await actor.is_healthy()


async def test_a_role_is_not_healthy_while_its_event_loop_hangs(security, target_info):
    deadlines = {"search_seconds": 0.2, "health_seconds": 0.02}
    actor = PathScorerActor(tiny_pipeline(deadlines=deadlines), security)
    await actor.start(target_info, HOST)
    assert not await answer_while_hanging(actor.is_healthy)
    assert await actor.is_healthy()
    await actor.stop()


async def test_a_drafter_without_its_scorer_or_of_another_vocabulary_does_not_serve(
    pipeline, security, target_info, vocabulary, scorer
):
    actor = DrafterActor(pipeline, security)
    with pytest.raises(VocabularyError, match="different meanings"):
        await actor.start(target_info, "of another target", scorer.address, HOST)
    with pytest.raises(DrafterError, match=r"127\.0\.0\.1:1"):
        await actor.start(target_info, vocabulary, "127.0.0.1:1", HOST)
    assert not await actor.is_healthy()
    await actor.stop()


async def test_a_scorer_whose_model_is_missing_is_refused(security, target_info, tmp_path):
    config = tiny_pipeline({"search": {"ngram": tmp_path / "none.bin"}})
    with pytest.raises(NgramError, match=r"none\.bin"):
        await PathScorerActor(config, security).start(target_info, HOST)


async def test_off_loopback_without_tls_nothing_is_even_loaded(security, target_info, tmp_path):
    missing = tmp_path / "none.bin"
    config = tiny_pipeline({"search": {"ngram": missing}, "drafter": {"path": missing}})
    with pytest.raises(ConfigError, match="without TLS"):
        await PathScorerActor(config, security).start(target_info, "0.0.0.0")
    with pytest.raises(ConfigError, match="without TLS"):
        await DrafterActor(config, security).start(target_info, None, "127.0.0.1:1", "0.0.0.0")


async def test_a_pipeline_without_a_drafter_has_none_to_serve(security, target_info):
    config = tiny_pipeline({"drafter": None})
    with pytest.raises(ConfigError, match="nothing to serve"):
        await DrafterActor(config, security).start(target_info, "", "127.0.0.1:1", HOST)


async def test_the_self_tests_suit_the_smallest_vocabulary(target_info):
    assert self_test.prompt(target_info) == [0, 1, 2, 3]
    assert self_test.lattice(target_info).token_ids.max() == target_info.vocab_size - 1
