"""Token Recycling: remembers tokens that the target found likely, and drafts them later.

A matrix holds, for each token, the eight likeliest next tokens when the target last saw it; a draft
is a static tree over this matrix. Algorithm and constants of Spec-Bench's
evaluation/inference_recycling.py (template 2.2.2), after Luo et al., Turning Trash into Treasure
(arXiv 2408.08696). The matrix is kept across requests, and updated from the rows of every tree,
accepted or not. Differences from the original: a token that the target has not seen yet has no
children, where the original drafts token 0; and if the tree is larger than requested, the nodes
likeliest to be reached are drafted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from diffuspec.core.drafter_config import TokenRecyclingConfig
from diffuspec.core.interfaces import ObservableVerifier, Observation, PathScorer, TargetInfo
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.drafters.kind import DrafterKind, Target
from diffuspec.drafters.tree_builder import TreeBuilder, draft_each
from diffuspec.drafters.tree_template import TemplateNode, make_template

NUM_CANDIDATES = 8  # candidates kept for each token
_UNKNOWN = -1

# The static tree; its depths have 8, 21, 25, 15, 8 and 3 nodes.
TEMPLATE = make_template(
    (
        (8,),
        (8, 4, 3, 2, 1, 1, 1, 1),
        (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
        (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
        (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
        (2, 0, 0, 1, 0, 0, 0, 0),
    )
)

# P(token accepted | parent accepted) by rank; that of rank 0 at depths 1, 2 and from 3 on. Measured
# on the embedded pair's questions.
_BEST_PRIORS = (0.3, 0.38, 0.6)
_OTHER_PRIORS = (0.075, 0.038, 0.024, 0.017, 0.013, 0.013, 0.005)
_CONFIDENCES = [[math.log(prior) for prior in (best, *_OTHER_PRIORS)] for best in _BEST_PRIORS]


class TokenRecyclingDrafter:
    """A Drafter that observes the verifier in this process."""

    num_top = NUM_CANDIDATES
    hidden_layers = ()

    def __init__(self, info: TargetInfo, verifier: ObservableVerifier) -> None:
        self._eos_token_ids = frozenset(info.eos_token_ids)
        # The likeliest tokens after each token, [vocab_size, NUM_CANDIDATES].
        self._after = np.full((info.vocab_size, NUM_CANDIDATES), _UNKNOWN, np.int32)
        self._request_ids: dict[str, None] = {}  # unreleased requests with drafts, oldest first
        self._max_requests = info.max_sequences
        self._verifier = verifier
        verifier.add_observer(self)

    @property
    def is_active(self) -> bool:
        """Whether there are requests to draft for."""
        return bool(self._request_ids)

    def observe(self, observations: Sequence[Observation]) -> None:
        """Record the likeliest tokens after the token of every row."""
        for one in observations:
            rows = [int(one.prefix[-1]), *one.tree.token_ids]
            self._after[rows, : one.top_token_ids.shape[1]] = one.top_token_ids

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """Return one draft per request, in order; an empty one after an unseen token."""
        return draft_each(requests, self.draft_one)

    async def release(self, request_id: str) -> None:
        self._request_ids.pop(request_id, None)

    def close(self) -> None:
        self._verifier.remove_observer(self)

    def draft_one(self, request: DraftRequest) -> Draft:
        """Draft for one request."""
        self.note(request.request_id)
        builder = TreeBuilder(request, self._eos_token_ids)
        last = int(request.prefix[-1])
        builder.add_likeliest(
            (last, TEMPLATE), self._expand, request.max_nodes, request.num_draft_tokens
        )
        return builder.draft()

    def _expand(
        self, state: tuple[int, TemplateNode], depth: int
    ) -> Iterator[tuple[int, float, tuple[int, TemplateNode]]]:
        token_id, node = state
        candidates = self._after[token_id].tolist()
        confidences = _CONFIDENCES[min(depth, len(_CONFIDENCES)) - 1]
        ranked = zip(candidates, confidences, node.children, strict=False)
        for candidate, confidence, child in ranked:
            if candidate != _UNKNOWN:
                yield candidate, confidence, (candidate, child)

    def note(self, request_id: str) -> None:
        """Record that a request is drafted for; forget the oldest if too many are not released."""
        self._request_ids[request_id] = None
        if len(self._request_ids) > self._max_requests:
            del self._request_ids[next(iter(self._request_ids))]


def _load(
    config: TokenRecyclingConfig, target: Target, path_scorer: PathScorer | None
) -> TokenRecyclingDrafter:
    return TokenRecyclingDrafter(target.info, target.observed)


KIND = DrafterKind(TokenRecyclingConfig, _load, observes=True)
