"""Roles behind the wire answer as they would in this process."""

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest

from diffuspec.core.params import SamplingParams
from diffuspec.core.types import EMPTY_TREE, DraftRequest, VerifyRequest
from diffuspec.rpc.client.roles import RemoteDrafter, RemotePathScorer, RemoteVerifier
from diffuspec.rpc.server.servicers import DrafterServicer, PathScorerServicer, VerifierServicer
from tests.support.fakes import (
    FAKE_TARGET,
    FakeDrafter,
    FakeVerifier,
    oracle_of,
    right_branch_is_late,
)
from tests.support.lattice_fakes import FakeLatticeModel, FakePathScorer
from tests.support.serving import connected, serving

SAMPLING = SamplingParams(temperature=0.7, seed=-3, logprobs=0)


def draft_request(prefix: list[int], request_id: str = "a") -> DraftRequest:
    tokens = np.array(prefix, np.int32)
    return DraftRequest(request_id, tokens, 8, "beams", 12, 0.25, SAMPLING, num_alternatives=3)


async def test_a_remote_verifier_gives_the_local_verdicts(security):
    verifier = FakeVerifier()
    async with connected(verifier, security) as remote:
        drafter = FakeDrafter(oracle_of(verifier), right_branch_is_late)
        prefix = [1, 2, 3]
        for _ in range(4):
            [draft] = await drafter.draft([draft_request(prefix)])
            tokens = np.array(prefix, np.int32)
            request = VerifyRequest("a", tokens, 3, draft.tree, SAMPLING)
            [expected] = await verifier.verify([request])
            [found] = await remote.verify([request])
            assert dataclasses.replace(found, transport_seconds=0.0) == expected
            prefix += found.token_ids
        assert remote.info == verifier.info


async def test_a_remote_drafter_sees_the_requests_and_gives_the_local_drafts(security):
    drafter = FakeDrafter(oracle_of(FakeVerifier()), right_branch_is_late)
    async with serving(DrafterServicer(drafter, FAKE_TARGET), security=security) as wire:
        remote = await wire.connect(RemoteDrafter)
        requests = [draft_request([1, 2]), draft_request([1, 2, 9]), draft_request([5], "b")]
        prediction = np.array([3, 4], np.int32)
        requests[2] = dataclasses.replace(requests[2], prediction=prediction)
        found = await remote.draft(requests)
        for sent, received in zip(requests, drafter.batches[0], strict=True):
            assert received.prefix.tolist() == sent.prefix.tolist()
            assert received.request_id.endswith(sent.request_id)
            assert received.prediction.tolist() == sent.prediction.tolist()
            assert _scalars(received) == _scalars(sent)
        assert [draft.tree for draft in found] == [
            draft.tree for draft in await drafter.draft(drafter.batches[0])
        ]


def _scalars(request: DraftRequest) -> list[Any]:
    values = dataclasses.astuple(request)[1:]
    return [value for value in values if not isinstance(value, np.ndarray)]


async def test_a_remote_path_scorer_gives_the_local_drafts(security):
    model, scorer = FakeLatticeModel(oracle_of(FakeVerifier())), FakePathScorer()
    async with serving(PathScorerServicer(scorer, FAKE_TARGET), security=security) as wire:
        remote_scorer = await wire.connect(RemotePathScorer)
        requests = [draft_request([4, 5]), draft_request([4, 5, 6])]
        lattices = await model.lattices(requests)
        drafts = await remote_scorer.search(requests, lattices)
        same = await scorer.search(requests, lattices)
        assert [draft.tree for draft in drafts] == [draft.tree for draft in same]
        assert [draft.confidences for draft in drafts] == [one.confidences for one in same]


@pytest.mark.parametrize("role", ["drafter", "verifier"])
async def test_released_requests_are_let_go(role, security):
    verifier = FakeVerifier()
    drafter = FakeDrafter(oracle_of(verifier), right_branch_is_late)
    servicers = (DrafterServicer(drafter, FAKE_TARGET), VerifierServicer(verifier))
    async with serving(*servicers, security=security) as wire:
        if role == "drafter":
            remote = await wire.connect(RemoteDrafter)
            await remote.draft([draft_request([1])])
            await remote.release("a")
            await remote.draft([draft_request([1], "b")])
            assert [name.partition("/")[2] for name in drafter.released] == ["a"]
        else:
            remote = await wire.connect(RemoteVerifier)
            tree = (await drafter.draft([draft_request([1])]))[0].tree
            tokens = np.array([1], np.int32)
            await remote.verify([VerifyRequest("a", tokens, 1, tree, SAMPLING)])
            await remote.release("a")
            await remote.verify([VerifyRequest("b", tokens, 1, tree, SAMPLING)])
            assert [name.partition("/")[2] for name in verifier.held] == ["b"]


async def test_two_coordinators_may_name_their_requests_alike(security):
    drafter = FakeDrafter(oracle_of(FakeVerifier()), right_branch_is_late)
    async with serving(DrafterServicer(drafter, FAKE_TARGET), security=security) as wire:
        for prefix in ([1, 2], [3, 4]):
            remote = await wire.connect(RemoteDrafter)
            await remote.draft([draft_request(prefix)])
        first, second = (batch[0].request_id for batch in drafter.batches)
        assert first != second
        await wire.clients[0].close()
        while not drafter.released:
            await asyncio.sleep(0.01)
        assert drafter.released == [first]


async def test_what_goes_over_a_link_is_counted(security):
    async with connected(FakeVerifier(), security) as remote:
        request = VerifyRequest("a", np.arange(40, dtype=np.int32), 1, EMPTY_TREE, SamplingParams())
        await remote.verify([request])
        sent, received = remote.num_bytes_sent, remote.num_bytes_received
        assert sent > 40 and received > 0
        await remote.verify([request])
        assert remote.num_bytes_sent - sent < 40
        assert remote.transport_seconds > 0
