"""Fakes of the two halves of DiffuSpec's drafter, and of the proxy that its search asks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.types import Draft, DraftRequest, Lattice
from tests.support.fakes import Oracle


class FakeLatticeModel:
    """A `LatticeModel` that puts the target's token first at every position, a wrong one second."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.released: list[str] = []

    async def lattices(self, requests: Sequence[DraftRequest]) -> list[Lattice]:
        return [self._lattice(request) for request in requests]

    async def release(self, request_id: str) -> None:
        self.released.append(request_id)

    def close(self) -> None:
        pass

    def _lattice(self, request: DraftRequest) -> Lattice:
        truth = self.oracle(request, request.num_draft_tokens)
        token_ids = np.array([[token, 2 if token == 1 else 1] for token in truth], np.int32)
        logprobs = np.log(np.tile(np.array([0.7, 0.2], np.float32), (len(truth), 1)))
        return Lattice(token_ids, logprobs, np.full(len(truth), 2, np.int32), len(truth))


class FakePathScorer:
    """A `PathScorer` that takes the first candidate of every position."""

    async def search(
        self, requests: Sequence[DraftRequest], lattices: Sequence[Lattice]
    ) -> list[Draft]:
        drafts = []
        for request, lattice in zip(requests, lattices, strict=True):
            path = lattice.token_ids[: request.max_nodes, 0].tolist()
            confidences = tuple(lattice.logprobs[: len(path), 0].tolist())
            drafts.append(Draft(chain(path), confidences, lattice.num_tokens_before_eos))
        return drafts


class FakeCausalProxy:
    """A `CausalProxy` over bigrams: token n + 1 is likely after token n."""

    max_context_tokens = 1

    def begin(self, context: Sequence[int], salt: str | None = None) -> int:
        return context[-1]

    def expand(
        self, states: Sequence[int], candidates: Sequence[int]
    ) -> tuple[list[list[float]], list[list[int]]]:
        scores = [
            [-0.1 if token == state + 1 else -5.0 for token in candidates] for state in states
        ]
        return scores, [list(candidates) for _ in states]
