"""A bug of vLLM on CPUs that corrupts sampled answers with any kind of draft, and its repair.

vLLM's C++ stand-in for a Triton kernel fills a copy of its output unless that is of 64-bit
integers, and leaves the output itself as it was allocated. So the temperature, top-k and top-p of
each verified token are uninitialised memory. vLLM 0.29, 0.31 and 0.32 have this bug where Triton
has no CPU backend; 0.30 does not start there with any kind of draft. Greedy answers are right as
long as no request in their batch is sampled.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

logger = logging.getLogger(__name__)


def repair_sampling(sampler: Any) -> bool:
    """Replace the faulty function by a correct one; return whether that was necessary.

    sampler: vLLM's module `v1.sample.rejection_sampler`.
    """
    if all(_is_right(sampler.expand_batch_to_tokens, one) for one in ([0.5, 0.0], [0.25, 0.75])):
        return False
    sampler.expand_batch_to_tokens = expand_batch_to_tokens
    logger.warning(
        "diffuspec: this vLLM loses the temperature of sampled requests with any kind of "
        "drafts; the faulty function is replaced in this process"
    )
    return True


def expand_batch_to_tokens(
    x: torch.Tensor,
    cu_num_tokens: torch.Tensor,
    num_tokens: int,
    replace_from: int = 0,
    replace_to: int = 0,
) -> torch.Tensor:
    """Repeat the value of each request for each of its tokens, like vLLM's function of this name.

    x: [requests]. cu_num_tokens: [requests], cumulative numbers of tokens.
    """
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = torch.where(x == replace_from, torch.full_like(x, replace_to), x)
    return values.repeat_interleave(counts, output_size=num_tokens)


def _is_right(expand: Any, values: list[float]) -> bool:
    ends = torch.tensor([1, 3], dtype=torch.int32)
    found = expand(torch.tensor(values), ends, 3, replace_from=0, replace_to=1)
    first, second = [value or 1.0 for value in values]
    return bool(found.tolist() == [first, second, second])
