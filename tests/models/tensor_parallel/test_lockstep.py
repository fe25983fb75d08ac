"""Two ranks over gloo verify what one process verifies, step by step."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.errors import InvalidRequestError, VerifierError, VerifierUnavailableError
from diffuspec.core.params import SamplingParams, StructuredOutput
from diffuspec.models.layers.fused_decoder import FusedDecoder, FusedDecoderLayer
from diffuspec.models.target import CausalTarget
from tests.models.tensor_parallel.follower import config
from tests.models.tensor_parallel.processes import (
    IDLE_SECONDS,
    Follower,
    Ranks,
    outcomes,
    save_family,
)
from tests.models.test_target import (
    GREEDY,
    NUM_NEW,
    PENALISED,
    PROMPT,
    SAMPLED,
    decode,
    request,
    verify_one,
    with_wrong_branches,
)
from tests.support.models import make_model

# Tokens are called w1, w23 and so on: any whose number begins with an odd digit, without an end.
STRUCTURED = SamplingParams(
    temperature=0.9, seed=5, structured_output=StructuredOutput(regex="([vw][13579][0-9]*)+x")
)

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory, follower: Follower) -> Iterator[Ranks]:
    path = save_family(tmp_path_factory.mktemp("qwen2"), "qwen2")
    with Ranks(config(path), [follower]) as ranks:
        yield ranks
    assert follower.hear() == "left"


@pytest.fixture(scope="module")
def alone(qwen2: Ranks) -> Iterator[CausalTarget]:
    """The same target in one process."""
    target = CausalTarget.load(qwen2.config)
    yield target
    target.close()


def pages_of(share: CausalTarget, request_id: str) -> list[int]:
    """Return a request's pages, without acquiring them on this rank alone."""
    pages: list[int] = share.runner.cache._tables[request_id].pages.tolist()
    return pages


async def test_plain_greedy_decoding_equals_transformers_generate(qwen2: Ranks) -> None:
    model = make_model("qwen2")
    model.generation_config.eos_token_id = None
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=NUM_NEW, do_sample=False)
    assert await decode(qwen2.target, GREEDY) == expected[0].tolist()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, PENALISED], ids=["greedy", "top_p", "penal"])
async def test_trees_for_several_sequences_get_the_verdicts_of_one_process(
    qwen2: Ranks, alone: CausalTarget, sampling: SamplingParams
) -> None:
    rng = np.random.default_rng(1)
    truth = await decode(alone, sampling)
    prefixes = {name: list(truth[: 8 + 2 * i]) for i, name in enumerate("xyz")}
    num_accepted = 0
    for _ in range(4):
        batch = [
            request(prefix, with_wrong_branches(truth[len(prefix) :], rng), sampling, name)
            for name, prefix in prefixes.items()
        ]
        verdicts = await qwen2.target.verify(batch)
        assert outcomes(verdicts) == outcomes(await alone.verify(batch))
        for one, verdict in zip(batch, verdicts, strict=True):
            prefixes[one.request_id] += verdict.token_ids
            num_accepted += verdict.num_accepted_tokens
    for prefix in prefixes.values():
        assert prefix[: len(truth)] == truth[: len(prefix)]
    assert num_accepted > 12


async def test_ranks_mask_alike(qwen2: Ranks, alone: CausalTarget) -> None:
    """All ranks drop the same nodes, and one that cannot go on fails on all of them."""
    rng = np.random.default_rng(2)
    truth = await decode(alone, STRUCTURED)
    assert all(str(token)[0] in "13579" for token in truth[len(PROMPT) :])
    prefix = list(PROMPT)
    while len(prefix) < len(truth):
        one = request(prefix, with_wrong_branches(truth[len(prefix) :], rng), STRUCTURED)
        prefix += (await verify_one(qwen2.target, one)).token_ids
    assert prefix[: len(truth)] == truth
    wrong = request([*PROMPT, 4], sampling=STRUCTURED)
    with pytest.raises(InvalidRequestError, match="the answer so far violates the form"):
        await verify_one(qwen2.target, wrong)
    assert len(await qwen2.target.verify([request(PROMPT)])) == 1


async def test_each_rank_holds_its_share_of_heads_and_weights(
    qwen2: Ranks, alone: CausalTarget
) -> None:
    assert qwen2.share.runner.cache.store.shape.num_kv_heads == 1
    assert alone.runner.cache.store.shape.num_kv_heads == 2
    assert qwen2.share.runner.vocab_size == alone.runner.vocab_size


async def test_collectives_part_fused_layers(qwen2: Ranks, alone: CausalTarget) -> None:
    """Each layer of a share is fused by itself, since others wait between layers."""
    assert isinstance(alone.model.base_model.layers, FusedDecoder)
    layers = qwen2.share.model.base_model.layers
    assert not isinstance(layers, FusedDecoder)
    assert all(isinstance(layer, FusedDecoderLayer) for layer in layers)


async def test_the_prefix_of_a_released_request_can_be_reused(
    qwen2: Ranks, alone: CausalTarget
) -> None:
    prefix = (await decode(alone, GREEDY))[:24]
    await qwen2.target.verify([request(prefix, request_id="first")])
    pages = pages_of(qwen2.share, "first")
    await qwen2.target.release("first")
    longer = request([*prefix, 5], chain([6, 7]), request_id="second")
    assert outcomes(await qwen2.target.verify([longer])) == outcomes(await alone.verify([longer]))
    assert pages_of(qwen2.share, "second") == pages
    more = [request(prefix[: 9 + i], request_id=name) for i, name in enumerate("abc")]
    assert outcomes(await qwen2.target.verify(more)) == outcomes(await alone.verify(more))


async def test_bad_requests_are_refused_before_anything_is_broadcast(qwen2: Ranks) -> None:
    with pytest.raises(InvalidRequestError, match="below 118, got 500"):
        await qwen2.target.verify([request([3, 500])])
    assert len(await qwen2.target.verify([request(PROMPT)])) == 1


async def test_nan_logits_fail_on_all_ranks_and_clear_their_caches(
    qwen2: Ranks, alone: CausalTarget
) -> None:
    good = request(PROMPT, request_id="bad")
    await qwen2.target.verify([good])
    keys, _ = qwen2.share.runner.cache.store.layer(0)
    keys[pages_of(qwen2.share, "bad"), :, :3] = torch.nan  # this rank's head alone
    with pytest.raises(VerifierError, match="not finite for requests bad") as failure:
        await qwen2.target.verify([good])
    assert not isinstance(failure.value, VerifierUnavailableError)
    assert outcomes(await qwen2.target.verify([good])) == outcomes(await alone.verify([good]))


async def test_a_message_may_be_longer_than_a_block(qwen2: Ranks, alone: CausalTarget) -> None:
    batch = [request(PROMPT, request_id="long" * 50_000)]
    assert outcomes(await qwen2.target.verify(batch)) == outcomes(await alone.verify(batch))
    await qwen2.target.release(batch[0].request_id)


async def test_idle_ranks_take_empty_steps(qwen2: Ranks) -> None:
    watch = asyncio.create_task(qwen2.target.watch())
    await asyncio.sleep(5 * IDLE_SECONDS)
    assert not watch.done()
    watch.cancel()
    assert len(await qwen2.target.verify([request(PROMPT)])) == 1
