"""Checks of the batches and draft trees that a target is asked to verify."""

from __future__ import annotations

from collections.abc import Sequence

from diffuspec.algorithm import draft_tree
from diffuspec.core.errors import InvalidRequestError, VerifierError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import VerifyRequest
from diffuspec.text.tokenizer import unknown_token_id


def check_batch(requests: Sequence[VerifyRequest], info: TargetInfo) -> None:
    """Raise InvalidRequestError for a bad request, VerifierError for too many."""
    limit = info.max_sequences
    if len(requests) > limit:
        raise VerifierError(f"{len(requests)} requests in one batch, max_sequences is {limit}")
    ids = [request.request_id for request in requests]
    if len(set(ids)) < len(ids):
        repeated = sorted({one for one in ids if ids.count(one) > 1})
        raise InvalidRequestError(f"a request id appears twice in one batch: {repeated}")
    for request in requests:
        try:
            _check_request(request, info)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"request {request.request_id}: {error}") from error


def _check_request(request: VerifyRequest, info: TargetInfo) -> None:
    prefix, tree, vocab_size = request.prefix, request.tree, info.vocab_size
    limit = info.max_model_len
    if not 1 <= len(prefix) <= limit:
        raise InvalidRequestError(f"prefix must have 1 to {limit} tokens, got {len(prefix)}")
    if (wrong := unknown_token_id(prefix, vocab_size)) is not None:
        raise InvalidRequestError(f"token ids must be below {vocab_size}, got {wrong}")
    if (most := request.max_read_tokens) is not None and most < 1:
        raise InvalidRequestError(f"max_read_tokens must be 1 or more, got {most}")
    if request.sampling.lacks_seed:
        raise InvalidRequestError("seed must be given to sample, got None")
    request.sampling.check_token_ids(vocab_size)
    max_nodes = info.max_tree_nodes
    if tree.num_nodes > max_nodes:
        raise InvalidRequestError(
            f"draft tree must have at most {max_nodes} nodes, got {tree.num_nodes}"
        )
    draft_tree.validate(tree)
    if request.is_of_prompt:
        _check_is_prompt(request)
    if len(prefix) + tree.num_nodes > limit:
        end = len(prefix) + max(draft_tree.depths(tree), default=0)
        if end > limit:
            raise InvalidRequestError(f"draft must end by token {limit}, it ends at {end}")
    if (highest := max(tree.token_ids, default=0)) >= vocab_size:
        raise InvalidRequestError(f"draft token ids must be below {vocab_size}, got {highest}")


def _check_is_prompt(request: VerifyRequest) -> None:
    """Check a tree that begins within the prompt. Raises InvalidRequestError."""
    num_left = request.num_prompt_tokens - len(request.prefix)
    if num_left != request.tree.num_nodes or not draft_tree.is_chain(request.tree):
        raise InvalidRequestError(
            f"a draft within the prompt must be a chain of {num_left} tokens, up to "
            f"num_prompt_tokens, got {request.tree.num_nodes}"
        )
    if request.sampling.structured_output is not None:
        raise InvalidRequestError("a draft within the prompt must have no structured_output")
