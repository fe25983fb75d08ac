"""The self-test: one small step of real work, done before a role reports that it serves."""

from __future__ import annotations

import math

import numpy as np

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import EMPTY_TREE, DraftRequest, Lattice, VerifyRequest

REQUEST_ID = "self-test"
NUM_TOKENS = 4
SPECULATION = SpeculationParams(policy="fixed", num_draft_tokens=NUM_TOKENS, max_nodes=NUM_TOKENS)
SAMPLING = SamplingParams(max_tokens=2 * NUM_TOKENS, ignore_eos=True)


def prompt(info: TargetInfo) -> list[int]:
    """Return a prompt that is valid for every target."""
    return list(range(min(NUM_TOKENS, info.vocab_size)))


def draft_request(info: TargetInfo) -> DraftRequest:
    """Return a request for a draft of NUM_TOKENS tokens after `prompt`."""
    return DraftRequest(
        request_id=REQUEST_ID,
        prefix=np.array(prompt(info), np.int32),
        num_draft_tokens=NUM_TOKENS,
        tree_shape=SPECULATION.tree_shape,
        max_nodes=NUM_TOKENS,
        drafter_weight=0.5,
        sampling=SAMPLING,
    )


def verify_request(info: TargetInfo) -> VerifyRequest:
    """Return a request to verify `prompt` without a draft."""
    token_ids = np.array(prompt(info), np.int32)
    return VerifyRequest(REQUEST_ID, token_ids, len(token_ids), EMPTY_TREE, SAMPLING)


def lattice(info: TargetInfo) -> Lattice:
    """Return a lattice of NUM_TOKENS positions with two candidates each."""
    token_ids = np.tile(np.array([0, info.vocab_size - 1], np.int32), (NUM_TOKENS, 1))
    logprobs = np.full((NUM_TOKENS, 2), math.log(0.5), np.float32)
    return Lattice(token_ids, logprobs, np.full(NUM_TOKENS, 2, np.int32), NUM_TOKENS)
