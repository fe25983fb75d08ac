"""Two kernels for the attention of one segment's rows over columns of the cache.

query [heads, rows, dim], keys and values [kv_heads, columns, dim] -> [rows, heads, dim]. Heads that
share a key head are treated as additional rows of it. Masks are additive.
"""

from __future__ import annotations

import torch

from diffuspec.models.attention.scoring import Scoring


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scoring: Scoring,
) -> torch.Tensor:
    """Attend in three operations. The mask covers the last columns; the others are seen by all."""
    num_heads, num_rows, dim = query.shape
    num_kv_heads, num_columns, _ = keys.shape
    packed = query.reshape(num_kv_heads, -1, dim)
    scores = torch.baddbmm(
        keys.new_empty(()), packed, keys.transpose(1, 2), beta=0, alpha=scoring.scaling
    )  # [kv_heads, heads / kv_heads * rows, columns]
    _cap(scores, scoring.softcap)
    if mask is not None:
        masked = num_columns - mask.shape[1]
        scores.view(num_heads, num_rows, num_columns)[:, :, masked:].add_(mask)
    if scoring.sinks is not None:
        sinks = _for_rows(scoring.sinks, num_kv_heads, num_rows).to(scores.dtype)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
    output = torch.bmm(weights[..., :num_columns], values)
    return output.view(num_heads, num_rows, dim).transpose(0, 1)


def attend_in_blocks(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scoring: Scoring,
    block_size: int,
) -> torch.Tensor:
    """Attend over one block of columns after another, with a running softmax.

    A masked block leaves a row's running sums as they are, and every product has the same shape
    whatever the number of columns: the result is the same to the last bit for any number of
    columns. The mask covers all columns, a multiple of block_size.
    """
    num_heads, num_rows, dim = query.shape
    num_kv_heads, num_columns, _ = keys.shape
    packed = query.reshape(num_kv_heads, -1, dim)
    if scoring.sinks is None:
        lowest = torch.finfo(torch.float32).min  # finite: the first blocks may be masked
        highest = torch.full((num_kv_heads, packed.shape[1], 1), lowest, device=query.device)
        total = torch.zeros_like(highest)
    else:  # a column seen already, of weight exp(0) and without a value
        highest = _for_rows(scoring.sinks, num_kv_heads, num_rows).float()
        total = torch.ones_like(highest)
    output = torch.zeros(packed.shape, device=query.device)
    for first in range(0, num_columns, block_size):
        block = slice(first, first + block_size)
        scores = torch.bmm(packed, keys[:, block].transpose(1, 2)).float() * scoring.scaling
        _cap(scores, scoring.softcap)
        scores.view(num_heads, num_rows, block_size).add_(mask[:, block])
        previous, highest = highest, torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights = (scores - highest).exp()
        shrink = (previous - highest).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        output = output * shrink + torch.bmm(weights.to(values.dtype), values[:, block]).float()
    return (output / total).to(values.dtype).view(num_heads, num_rows, dim).transpose(0, 1)


def _cap(scores: torch.Tensor, softcap: float | None) -> None:
    """Keep scores within -softcap and softcap, in place."""
    if softcap is not None:
        scores.div_(softcap).tanh_().mul_(softcap)


def _for_rows(sinks: torch.Tensor, num_kv_heads: int, num_rows: int) -> torch.Tensor:
    """Return the sinks of rows packed by key head, [kv_heads, heads / kv_heads * rows, 1]."""
    return sinks.view(num_kv_heads, -1, 1).expand(-1, -1, num_rows).reshape(num_kv_heads, -1, 1)
