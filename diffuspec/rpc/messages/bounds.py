"""Limits on a role's work, checked for each message before any work is done.

Work grows with the number of rows, positions and prefix tokens. A role serves at most as many
requests as the target, and prefixes no longer than the target's context; no coordinator sends more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import (
    MAX_DRAFT_TOKENS,
    MAX_PREDICTED_TOKENS,
    MAX_TREE_NODES,
    SamplingParams,
)
from diffuspec.core.types import MAX_ALTERNATIVES, MAX_PRE_DRAFTS, Lattice
from diffuspec.v1.types_pb2 import DraftRow, PrefixDelta
from diffuspec.v1.verifier_pb2 import VerifyRow

_ROUNDING = 1e-3  # error of a float32 log-probability that should be 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one role. Every check raises InvalidRequestError with value and limit."""

    target: TargetInfo
    max_id_length: int

    @property
    def max_draft_rows(self) -> int:
        """Largest number of rows in a draft batch: one for each sequence, plus the pre-drafts."""
        return self.target.max_sequences + MAX_PRE_DRAFTS

    def check_batch(self, num_prefixes: int, num_rows: int, max_rows: int) -> None:
        _require("prefixes of a batch", num_prefixes, 0, self.target.max_sequences)
        _require("rows of a batch", num_rows, 0, max_rows)

    def check_id(self, request_id: str) -> None:
        check_id(request_id, self.max_id_length)

    def check_delta(self, delta: PrefixDelta) -> None:
        self.check_id(delta.request_id)
        length = delta.base_length + len(delta.token_ids)
        _require("tokens of a prefix", length, 0, self.target.max_model_len)
        self._check_token_ids(delta.token_ids)
        _require("tokens of a prediction", len(delta.prediction), 0, MAX_PREDICTED_TOKENS)
        self._check_token_ids(delta.prediction)

    def check_prefix(self, num_tokens: int, hypothetical: Sequence[int]) -> None:
        """Check a row's whole prefix, of which the tokens in `hypothetical` are unchecked."""
        _require("tokens of a row's prefix", num_tokens, 1, self.target.max_model_len)
        self._check_token_ids(hypothetical)

    def check_sampling(self, sampling: SamplingParams) -> None:
        """Check that a seed is given, and that token ids are in the vocabulary."""
        if sampling.lacks_seed:
            raise InvalidRequestError("seed must be given to sample, got None")
        sampling.check_token_ids(self.target.vocab_size)

    def check_draft_row(self, row: DraftRow) -> None:
        _require("num_draft_tokens", row.num_draft_tokens, 1, MAX_DRAFT_TOKENS)
        _require("max_nodes", row.max_nodes, 1, MAX_TREE_NODES)
        _require("drafter_weight", row.drafter_weight, 0, 1)
        _require("num_alternatives", row.num_alternatives, 0, MAX_ALTERNATIVES)

    def check_verify_row(self, row: VerifyRow, num_tokens: int) -> None:
        """Check a row whose prefix has `num_tokens` tokens."""
        tree = row.tree
        _require("num_prompt_tokens", row.num_prompt_tokens, 1, num_tokens + len(tree.token_ids))
        _require("nodes of a draft tree", len(tree.token_ids), 0, self.target.max_tree_nodes)
        if len(tree.parents) != len(tree.token_ids):
            raise InvalidRequestError(
                f"a draft tree must have a parent per node, got {len(tree.parents)} for "
                f"{len(tree.token_ids)} nodes"
            )
        self._check_token_ids(tree.token_ids)

    def check_lattice(self, lattice: Lattice, num_draft_tokens: int) -> None:
        """Check a lattice that answers a row with this draft length."""
        num_positions = lattice.num_positions
        _require("positions of a lattice", num_positions, 0, num_draft_tokens)
        _require("num_tokens_before_eos", lattice.num_tokens_before_eos, 0, num_positions)
        if not num_positions:
            return
        ids, logprobs = lattice.token_ids, lattice.logprobs
        is_candidate = np.arange(ids.shape[1]) < lattice.num_candidates[:, None]
        last_id = self.target.vocab_size - 1
        _require("token ids of candidates", int(ids[is_candidate].min()), 0, last_id)
        _require("token ids of a lattice", int(ids.min()), -1, last_id)
        _require("token ids of a lattice", int(ids.max()), -1, last_id)
        if (highest := float(logprobs.max())) > _ROUNDING:
            raise InvalidRequestError(f"log-probabilities must be at most 0, got {highest:g}")
        if np.isneginf(logprobs[is_candidate]).any():
            raise InvalidRequestError("log-probabilities of candidates must be finite, got -inf")

    def _check_token_ids(self, token_ids: Collection[int]) -> None:
        if token_ids:
            _require("token ids", max(token_ids), 0, self.target.vocab_size - 1)


def check_id(request_id: str, max_length: int) -> None:
    """Raise InvalidRequestError for an id that is longer than any coordinator's."""
    _require("characters of a request id", len(request_id), 0, max_length)


def _require(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} must be from {low} to {high}, got {value}")
