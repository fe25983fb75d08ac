import asyncio

import numpy as np

from diffuspec.algorithm.search import PathSearch
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import DraftRequest
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.scheduler.coordinator import Coordinator
from tests.support.fakes import FakeVerifier, decode_plainly, oracle_of
from tests.support.lattice_fakes import FakeCausalProxy, FakeLatticeModel, FakePathScorer

GREEDY = SamplingParams(max_tokens=30, ignore_eos=True)


def request(name: str, *prefix: int) -> DraftRequest:
    return DraftRequest(name, np.array(prefix, np.int32), 4, "path", 8, 0.5, GREEDY)


async def test_drafts_come_in_the_order_of_the_requests_with_their_times():
    verifier = FakeVerifier()
    drafter = DiffuSpecDrafter(FakeLatticeModel(oracle_of(verifier)), FakePathScorer())
    prefixes = [(1, 2), (3,), (4, 5, 6)]
    drafts = await drafter.draft([request(str(n), *p) for n, p in enumerate(prefixes)])
    for prefix, draft in zip(prefixes, drafts, strict=True):
        expected = list(prefix)
        for token_id in draft.tree.token_ids:
            assert token_id == verifier.next_token(expected, GREEDY)
            expected.append(token_id)
    assert len({draft.draft_seconds for draft in drafts}) == 1 and drafts[0].draft_seconds > 0


async def test_a_release_reaches_the_model():
    model = FakeLatticeModel(oracle_of(FakeVerifier()))
    await DiffuSpecDrafter(model, FakePathScorer()).release("a")
    assert model.released == ["a"]


async def test_both_halves_drive_the_loop_together():
    verifier = FakeVerifier()
    search = PathSearch(FakeCausalProxy(), beam_width=2)
    drafter = DiffuSpecDrafter(FakeLatticeModel(oracle_of(verifier)), search)
    speculation = SpeculationParams(drafter_weight="adaptive")
    async with Coordinator(
        verifier, drafter, CoordinatorConfig(), DraftLengthConfig()
    ) as coordinator:

        async def tokens(*prompt: int) -> list[int]:
            stream = coordinator.stream(np.array(prompt), GREEDY, speculation)
            return [i async for step in stream for i in step.token_ids]

        answers = await asyncio.gather(tokens(1, 2), tokens(3))
    assert answers == [decode_plainly(verifier, prompt, GREEDY) for prompt in ([1, 2], [3])]
    assert len(verifier.batches) < 40
