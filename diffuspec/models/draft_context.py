"""The part of a prefix that a drafter reads: its beginning and its end.

A draft depends little on the middle of a long prompt, but reading that takes as long as many steps
of the target. The first tokens are kept, because attention relies on them (StreamingLLM, arXiv
2309.17453) and they often state the task.
"""

from __future__ import annotations

import math

import numpy as np

from diffuspec.core.types import TokenIds

_HEAD_SHARE = 4  # a quarter of the context is the beginning of the prompt
_MAX_GROWTH = 4  # a context grows to four times its size before tokens are dropped


def draft_context(prefix: TokenIds, num_prompt_tokens: int, size: int | None) -> TokenIds:
    """Return the tokens of a prefix that a drafter reads: at most `size` of its prompt's.

    The answer's tokens follow, and old tokens are dropped in large steps, so that what comes before
    a token stays the same for long, and its states in the cache valid. size: None means all tokens.
    """
    if size is None:
        return prefix
    num_head = size // _HEAD_SHARE
    start = max(min(num_prompt_tokens, len(prefix)) - (size - num_head), num_head)
    excess = len(prefix) - start - (_MAX_GROWTH * size - num_head)
    step = (_MAX_GROWTH - 1) * size
    start += max(math.ceil(excess / step), 0) * step
    return prefix if start == num_head else np.concatenate([prefix[:num_head], prefix[start:]])


def max_context_tokens(max_model_len: int, size: int | None) -> int:
    """Return the number of tokens in the longest context of a target's prefix."""
    return max_model_len if size is None else min(max_model_len, _MAX_GROWTH * size)


def cut_to_limit(prefix: TokenIds, limit: int) -> TokenIds:
    """Drop the beginning of a prefix that exceeds the limit, half a limit at a time.

    So the cut stays the same while the prefix grows by many tokens, and cached rows remain valid.
    """
    if len(prefix) <= limit:
        return prefix
    step = max(1, limit // 2)
    return prefix[math.ceil((len(prefix) - limit) / step) * step :]
