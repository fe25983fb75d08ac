"""The distribution that a request's parameters define, computed from the target's logits.

The order of shaping is vLLM's: the masks of structured output, allowed tokens, bad words,
min_tokens, logit_bias, penalties, temperature, min_p, top-k, top-p. Each row of logits is shaped by
the tokens before its own. In a row where no token would be left, allowed tokens are ignored; so are
bad words and min_tokens together. Ties go to the lowest token id.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.algorithm.transfers import to_device
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import TokenIds

_MIN_TEMPERATURE = 1e-6  # dividing logits by less would overflow float32
_TOP_P_MARGIN = 1e-6  # tolerance for a float32 sum of probabilities that should be p


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The tokens before each row's own token."""

    prefix: TokenIds  # [num_tokens], prompt and committed tokens
    num_prompt_tokens: int
    # [R], tokens between the prefix and the row's own, as far as known
    paths: Sequence[Sequence[int]]
    # [R, num_bytes]; bit i % 8 of byte i // 8: token id i is allowed.
    masks: NDArray[np.uint8] | None = None


def shape(
    logits: Tensor,
    params: SamplingParams,
    positions: Sequence[int] | Tensor,
    history: History,
    eos_token_ids: Collection[int],
) -> Tensor:
    """Return shaped logits, [R, V]; for greedy requests without temperature and later steps.

    positions[r] is the absolute index that row r's token will have in the sequence. A drafter may
    not know all tokens before a row: the path is then shorter than the position implies, and the
    row is shaped by the known tokens.
    """
    if params.shapes_logits:
        logits = _allow(logits.float(), history.masks)
        logits = _keep_only(logits, params.allowed_token_ids)
        logits = _mask(logits, _banned(params, positions, history, eos_token_ids))
        logits = _add_bias(logits, params)
        logits = _penalize(logits, params, history) if params.has_penalties else logits
    if params.is_greedy:
        return logits
    logits = logits.float() / max(params.temperature, _MIN_TEMPERATURE)
    if params.min_p:
        lowest = logits.amax(dim=-1, keepdim=True) + math.log(params.min_p)
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    return _filter(logits, params.top_k, params.top_p)


def _banned(
    params: SamplingParams,
    positions: Sequence[int] | Tensor,
    history: History,
    eos_token_ids: Collection[int],
) -> Iterator[tuple[int, int]]:
    """Yield the rows and token ids masked by min_tokens and bad words."""
    ends = {*eos_token_ids, *params.stop_token_ids}
    longest = max(map(len, params.bad_words_token_ids), default=1)
    output = history.prefix[history.num_prompt_tokens :]
    recent: list[int] = output[max(len(output) - longest + 1, 0) :].tolist()
    for row, (position, path) in enumerate(zip(positions, history.paths, strict=True)):
        if position - history.num_prompt_tokens < params.min_tokens:
            yield from ((row, end) for end in ends)
        is_whole = len(history.prefix) + len(path) == position
        before = (*recent, *path) if is_whole else ()
        for *begun, last in params.bad_words_token_ids:
            if not begun or before[-len(begun) :] == tuple(begun):
                yield row, last


def _allow(logits: Tensor, masks: NDArray[np.uint8] | None) -> Tensor:
    """Mask the ids whose bit is not set in a row's mask."""
    if masks is None:
        return logits
    size = min(8 * masks.shape[1], logits.shape[1])
    banned = np.unpackbits(~masks, axis=1, count=size, bitorder="little").view(np.bool_)
    allowed = logits.clone()
    allowed[:, :size].masked_fill_(to_device(banned, logits.device), -torch.inf)
    allowed[:, size:] = -torch.inf
    return allowed


def _keep_only(logits: Tensor, token_ids: Sequence[int] | None) -> Tensor:
    if token_ids is None:
        return logits
    ids = to_device(token_ids, logits.device, np.int64)
    kept = torch.full_like(logits, -torch.inf)
    kept[:, ids] = logits[:, ids]
    return _where_any(kept, logits)


def _mask(logits: Tensor, banned: Iterator[tuple[int, int]]) -> Tensor:
    pairs = list(banned)
    if not pairs:
        return logits
    rows, tokens = to_device(pairs, logits.device, np.int64).unbind(dim=1)
    masked = logits.clone()
    masked[rows, tokens] = -torch.inf
    return _where_any(masked, logits)


def _where_any(masked: Tensor, logits: Tensor) -> Tensor:
    """Return the masked rows; if a mask leaves no token in a row, that row of `logits`."""
    is_empty = masked.amax(dim=-1, keepdim=True) == -torch.inf
    return torch.where(is_empty, logits, masked)


def _add_bias(logits: Tensor, params: SamplingParams) -> Tensor:
    if not params.logit_bias:
        return logits
    ids = to_device([*params.logit_bias], logits.device, np.int64)
    biases = to_device([*params.logit_bias.values()], logits.device, np.float32)
    biased = logits.clone()
    biased[:, ids] += biases
    return biased


def _penalize(logits: Tensor, params: SamplingParams, history: History) -> Tensor:
    """In each row, lower the logits of the tokens in the prefix and on the row's path."""
    num_rows, vocab_size = logits.shape
    prefix = to_device(history.prefix, logits.device, np.int64)
    in_prompt = _count(prefix[: history.num_prompt_tokens], vocab_size) > 0  # [V]
    in_output = _count(prefix[history.num_prompt_tokens :], vocab_size)
    in_output = in_output.expand(num_rows, vocab_size).clone()
    pairs = [(row, token) for row, path in enumerate(history.paths) for token in path]
    if pairs:
        rows, tokens = to_device(pairs, logits.device, np.int64).unbind(dim=1)
        in_output.index_put_((rows, tokens), in_output.new_ones(len(pairs)), accumulate=True)
    repeated = in_prompt | (in_output > 0)
    factor = params.repetition_penalty
    weakened = torch.where(logits > 0, logits / factor, logits * factor)
    logits = torch.where(repeated, weakened, logits)
    return logits - params.presence_penalty * (in_output > 0) - params.frequency_penalty * in_output


def _count(token_ids: Tensor, vocab_size: int) -> Tensor:
    counts = torch.zeros(vocab_size, device=token_ids.device)
    return counts.index_add_(0, token_ids, counts.new_ones(len(token_ids)))


def _filter(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Set to -inf the tokens outside the top k, or outside the smallest set of mass top_p.

    The mass is measured after top-k. At least one token stays. Sums are in float64, so that the
    order of summation, which may vary with the batch's shape, does not change the set.
    """
    vocab_size = logits.shape[-1]
    top_k = min(top_k or vocab_size, vocab_size)
    if top_k == vocab_size and top_p == 1:
        return logits
    logprobs = logits.log_softmax(dim=-1)
    top = _most_likely(logprobs, top_k)
    counts = torch.full_like(top[:, :1], top_k, dtype=torch.int64)
    if top_p < 1:
        probabilities = top.exp().double()
        mass = probabilities.cumsum(dim=-1)
        total = mass[:, -1:] if top_k < vocab_size else 1.0
        is_needed = mass - probabilities < top_p * total - _TOP_P_MARGIN
        counts = is_needed.sum(dim=-1, keepdim=True).clamp(min=1)
    cutoff = top.gather(-1, counts - 1)
    num_tied = counts - (top > cutoff).sum(dim=-1, keepdim=True)
    tied = logprobs == cutoff
    kept = (logprobs > cutoff) | (tied & (tied.cumsum(dim=-1) <= num_tied))
    return logprobs.masked_fill(~kept, -torch.inf)


def _most_likely(logprobs: Tensor, num_values: int) -> Tensor:
    """Return each row's highest values in descending order, [R, num_values]."""
    if logprobs.device.type == "cpu":
        # Many times faster than torch's topk and sort, which also return indices.
        ascending = np.sort(logprobs.numpy(), axis=-1)
        return torch.from_numpy(ascending[:, -num_values:]).flip(-1)
    return logprobs.topk(num_values, dim=-1).values
