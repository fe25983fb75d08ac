"""Attention of one segment's rows over columns of the cache, in three ways.

query [heads, rows, dim], keys and values [kv_heads, columns, dim] -> [rows, heads, dim]. Heads that
share a key are taken together, as so many more rows. Masks are additive.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def attend_fused(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """One operation, faster than three on a CPU; the mask is [heads / kv_heads * rows, columns]."""
    num_heads, num_rows, dim = query.shape
    packed = query.reshape(1, keys.shape[0], -1, dim)
    output = functional.scaled_dot_product_attention(
        packed, keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, scale=scaling
    )
    return output.reshape(num_heads, num_rows, dim).transpose(0, 1)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """Return [rows, heads, dim]; the additive mask is for the last columns."""
    num_heads, num_rows, dim = query.shape
    num_kv_heads, num_columns, _ = keys.shape
    packed = query.reshape(num_kv_heads, -1, dim)
    scores = torch.baddbmm(
        keys.new_empty(()), packed, keys.transpose(1, 2), beta=0, alpha=scaling
    )  # [kv_heads, heads / kv_heads * rows, columns]
    if mask is not None:
        masked = num_columns - mask.shape[1]
        scores.view(num_heads, num_rows, num_columns)[:, :, masked:].add_(mask)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(values.dtype)
    output = torch.bmm(weights, values)
    return output.view(num_heads, num_rows, dim).transpose(0, 1)


def attend_in_blocks(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    block_size: int,
) -> torch.Tensor:
    """As attend, over one block of columns after the other.

    A block that a row does not see changes nothing of the row's running sums, and every product
    has the same shape whatever the number of columns.
    """
    num_heads, num_rows, dim = query.shape
    num_kv_heads, num_columns, _ = keys.shape
    packed = query.reshape(num_kv_heads, -1, dim)
    lowest = torch.finfo(torch.float32).min  # finite: a row may see nothing of the first blocks
    highest = torch.full((num_kv_heads, packed.shape[1], 1), lowest, device=query.device)
    total = torch.zeros_like(highest)
    output = torch.zeros(packed.shape, device=query.device)
    for first in range(0, num_columns, block_size):
        block = slice(first, first + block_size)
        scores = torch.bmm(packed, keys[:, block].transpose(1, 2)).float() * scaling
        scores.view(num_heads, num_rows, block_size).add_(mask[:, block])
        previous, highest = highest, torch.maximum(highest, scores.amax(-1, keepdim=True))
        weights = (scores - highest).exp()
        shrink = (previous - highest).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        output = output * shrink + torch.bmm(weights.to(values.dtype), values[:, block]).float()
    return (output / total).to(values.dtype).view(num_heads, num_rows, dim).transpose(0, 1)
