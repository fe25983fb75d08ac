"""VerifyPlan: one request's rows in a verification, and the verdict computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from diffuspec.algorithm import draft_tree
from diffuspec.algorithm.acceptance import Acceptance, accept, accept_whole
from diffuspec.algorithm.sampling import token_logprobs
from diffuspec.core.states import StateRows
from diffuspec.core.types import EMPTY_TREE, TokenLogprobs, Verdict, VerifyRequest
from diffuspec.models.attention.segment import Segment
from diffuspec.models.hidden_states import HiddenStates
from diffuspec.models.pages.table import PageTable
from diffuspec.text.answer_matchers import TokenMasks


class ChosenNodes(NamedTuple):
    """A request with only the nodes to verify in its tree."""

    request: VerifyRequest
    nodes: Sequence[int]  # as indices into the tree of the original request
    masks: TokenMasks | None  # tokens that a grammar admits after the root and each node

    def without_draft(self) -> ChosenNodes:
        """Return the request without nodes, unless these are of its prompt."""
        if self.request.is_of_prompt or not self.nodes:
            return self
        masks = None if self.masks is None else self.masks[:1]
        return ChosenNodes(replace(self.request, tree=EMPTY_TREE), (), masks)


@dataclass(slots=True, eq=False)
class VerifyPlan:
    """One request's rows in a step: its uncached prefix tokens (the tail), then its draft tree."""

    asked: VerifyRequest  # the request as received
    request: VerifyRequest  # the request with only the verified nodes in its tree
    table: PageTable
    num_cached: int  # prefix tokens in the cache before the step
    start: int  # prefix tokens in it now, after prefilled pieces
    first_logits: int  # index of the root's row in the step's logits
    nodes: Sequence[int]  # the verified nodes, as indices into the tree of the original request
    masks: TokenMasks | None  # tokens that a grammar admits after the root and each node
    hidden_states: HiddenStates | None  # states of the prefilled pieces

    @property
    def num_tail(self) -> int:
        return len(self.request.prefix) - self.start

    @property
    def num_rows(self) -> int:
        return self.num_tail + self.request.tree.num_nodes

    @property
    def logit_rows(self) -> slice:
        return slice(self.first_logits, self.first_logits + 1 + self.request.tree.num_nodes)

    def segment(self) -> Segment:
        """Lay out the prefix tail and the tree, with logits of the root and every node."""
        prefix, tree, num_tail = self.request.prefix, self.request.tree, self.num_tail
        tail = prefix[self.start :]
        logit_rows = np.arange(num_tail - 1, num_tail + tree.num_nodes)
        token_ids = (
            np.concatenate([tail, tree.token_ids], dtype=np.int32) if tree.num_nodes else tail
        )
        if draft_tree.is_chain(tree):
            positions = np.arange(self.start, self.start + self.num_rows)
            return Segment(self.table, self.start, token_ids, positions, "causal", logit_rows)
        last = len(prefix) - 1
        depths = [last + depth for depth in draft_tree.depths(tree)]
        positions = np.array([*range(self.start, len(prefix)), *depths])
        # The tail is a chain that ends with the tree's root.
        parents = [*range(-1, num_tail - 1), *(num_tail + parent for parent in tree.parents)]
        visible = draft_tree.ancestor_mask(parents)
        return Segment(self.table, self.start, token_ids, positions, visible, logit_rows)

    def acceptance(self, token_ids: Sequence[int]) -> Acceptance:
        """Return how far the tree agrees with the target's token at the root and each node."""
        judge = accept_whole if self.request.is_of_prompt else accept
        return judge(self.request.tree, token_ids)

    def logprobs(
        self, acceptance: Acceptance, logits: torch.Tensor
    ) -> tuple[TokenLogprobs, ...] | None:
        """Return the log-probabilities of the committed tokens, if the request wants them."""
        num_top = self.request.sampling.logprobs
        if num_top is None:
            return None
        rows = [self.first_logits, *(self.first_logits + 1 + n for n in acceptance.accepted_nodes)]
        chosen = torch.tensor(acceptance.token_ids, device=logits.device)
        return tuple(token_logprobs(logits[rows], chosen, num_top))

    def verdict(
        self,
        acceptance: Acceptance,
        logprobs: tuple[TokenLogprobs, ...] | None,
        seconds: float,
        states: StateRows | None,
    ) -> Verdict:
        """Return the verdict on the request as received, in terms of its own nodes and tokens."""
        return Verdict(
            acceptance.token_ids,
            tuple([self.nodes[node] for node in acceptance.accepted_nodes]),
            logprobs,
            seconds,
            states=states,
            num_cached_tokens=self.num_cached,
            num_unread_tokens=len(self.asked.prefix) - len(self.request.prefix),
        )
