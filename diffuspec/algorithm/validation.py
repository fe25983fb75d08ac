"""Validation: refuses requests that a target cannot serve, and drafts it cannot verify."""

from __future__ import annotations

import numpy as np

from diffuspec.algorithm.draft_tree import validate
from diffuspec.core.errors import ContextLengthError, InvalidRequestError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, TokenIds


def check_request(
    prompt: TokenIds,
    sampling: SamplingParams,
    speculation: SpeculationParams,
    info: TargetInfo,
    committed: TokenIds | None,
) -> None:
    """Raise InvalidRequestError, naming the value, if this target cannot serve a request.

    `committed`: output tokens that an interrupted request has already committed.
    """
    if not len(prompt):
        raise InvalidRequestError("the prompt is empty; it needs at least one token")
    _check_token_ids("prompt token ids", prompt, info.vocab_size)
    if sampling.lacks_seed:
        raise InvalidRequestError("seed must be given to sample: see SamplingParams.with_seed")
    if len(prompt) + sampling.max_tokens > info.max_model_len:
        raise ContextLengthError(
            f"{len(prompt)} prompt tokens and max_tokens {sampling.max_tokens} do not fit the "
            f"target's context of {info.max_model_len} tokens"
        )
    if speculation.max_nodes > info.max_tree_nodes:
        raise InvalidRequestError(
            f"max_nodes must be at most {info.max_tree_nodes}, got {speculation.max_nodes}"
        )
    if speculation.prediction:
        _check_token_ids("prediction", np.array(speculation.prediction), info.vocab_size)
    sampling.check_token_ids(info.vocab_size)
    if sampling.bad_words:
        raise InvalidRequestError("bad_words must be encoded: see encode_bad_words")
    if committed is not None:
        _check_token_ids("committed token ids", committed, info.vocab_size)
        if len(committed) >= sampling.max_tokens:
            raise InvalidRequestError(
                f"max_tokens must be above the number of committed tokens, {len(committed)}, "
                f"got {sampling.max_tokens}"
            )


def check_draft(draft: Draft, max_nodes: int, info: TargetInfo) -> None:
    """Raise InvalidRequestError for a draft that is malformed, too large, or has unknown tokens."""
    tree = draft.tree
    validate(tree)
    num_nodes, num_confidences = tree.num_nodes, len(draft.confidences)
    if num_nodes > max_nodes or num_confidences != num_nodes:
        raise InvalidRequestError(
            f"a draft must have at most {max_nodes} nodes and as many confidences, got "
            f"{num_nodes} and {num_confidences}"
        )
    highest = max(tree.token_ids, default=0)
    if highest >= info.vocab_size:
        raise InvalidRequestError(f"draft token ids must be below {info.vocab_size}, got {highest}")
    if draft.alternatives:
        _check_alternatives(draft, info.vocab_size)


def _check_token_ids(name: str, token_ids: TokenIds, vocab_size: int) -> None:
    wrong = token_ids[(token_ids < 0) | (token_ids >= vocab_size)]
    if len(wrong):
        raise InvalidRequestError(f"{name} must be from 0 to {vocab_size - 1}, got {wrong[0]}")


def _check_alternatives(draft: Draft, vocab_size: int) -> None:
    count, expected = len(draft.alternatives), 1 + draft.tree.num_nodes
    if count != expected:
        raise InvalidRequestError(
            f"a draft must have alternatives for none or for {expected} places, got {count}"
        )
    wrong = [
        token_id
        for alternatives in draft.alternatives
        for token_id, _ in alternatives
        if not 0 <= token_id < vocab_size
    ]
    if wrong:
        raise InvalidRequestError(
            f"alternative token ids must be from 0 to {vocab_size - 1}, got {wrong[0]}"
        )
