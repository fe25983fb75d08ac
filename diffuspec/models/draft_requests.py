"""Shared parts of drafters: checks of vocabulary and requests, rounds, and sampling noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from diffuspec.algorithm.sampling import perturb_logits
from diffuspec.algorithm.shaping import History
from diffuspec.core.errors import InvalidRequestError, VocabularyError
from diffuspec.core.types import DraftRequest
from diffuspec.text.tokenizer import unknown_token_id


def check_vocabulary(num_ids: int, vocab_size: int) -> None:
    """Raise VocabularyError if a drafter's vocabulary lacks some of the target's num_ids ids."""
    if num_ids > vocab_size:
        raise VocabularyError(
            f"the target knows {num_ids} token ids, the drafter only {vocab_size}: "
            "they must share a tokenizer"
        )


def check_draft_request(request: DraftRequest, num_ids: int) -> None:
    """Check the fields that every drafting model reads; token ids must be below num_ids.

    Raises InvalidRequestError.
    """
    if len(request.prefix) == 0:
        raise InvalidRequestError(f"request {request.request_id} has an empty prefix")
    if (wrong := unknown_token_id(request.prefix, num_ids)) is not None:
        raise InvalidRequestError(f"token ids must be below {num_ids}, got {wrong}")
    if request.sampling.lacks_seed:
        raise InvalidRequestError("seed must be given to sample, got None")


def draft_rounds(
    requests: Sequence[DraftRequest], limit: int, sizes: Sequence[int] | None = None
) -> Iterator[list[int]]:
    """Yield indices of requests to draft together: different ids, of sizes that add up to a limit.

    Every request has size 1 by default. One that is larger than the limit is alone.
    """
    left = list(range(len(requests)))
    while left:
        chosen, room = dict[str, int](), limit
        for place in left:
            size = 1 if sizes is None else sizes[place]
            if requests[place].request_id not in chosen and (size <= room or not chosen):
                chosen[requests[place].request_id] = place
                room -= size
        yield list(chosen.values())
        left = [place for place in left if place not in chosen.values()]


def is_noiseless(request: DraftRequest) -> bool:
    """Return whether the request takes the argmax of unshaped logits."""
    return request.sampling.is_greedy and not request.sampling.shapes_logits


def with_noise(
    logits: torch.Tensor, request: DraftRequest, eos_token_ids: Sequence[int]
) -> torch.Tensor:
    """Shape a block's logits, [k, V], and add the target's own sampling noise.

    The likeliest tokens then guess the tokens that the target will draw, not its mode.
    """
    if is_noiseless(request):
        return logits
    sampling, prefix = request.sampling, request.prefix
    positions = range(len(prefix), len(prefix) + len(logits))
    history = History(prefix, request.num_prompt_tokens, [()] * len(logits))
    return perturb_logits(logits, sampling, positions, history, eos_token_ids)
