"""Attention of rows over the columns of the cache that each of them sees, on a GPU."""

from __future__ import annotations

import torch
import triton

from diffuspec.models.rows.gpu import kernels
from diffuspec.models.rows.gpu.table import MIN_TILE, SPLIT, RowsTable


def write_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: RowsTable,
) -> None:
    """Write new rows [kv_heads, T, dim] into the cache, [slots, kv_heads, max_len, dim]."""
    if key.stride(2) != 1 or value.stride() != key.stride():
        key, value = key.contiguous(), value.contiguous()
    num_heads, num_rows, dim = key.shape
    kernels.write_cache[(num_rows, num_heads)](
        key,
        value,
        keys,
        values,
        table.rows,
        key.stride(0),
        key.stride(1),
        keys.stride(0),
        keys.stride(1),
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
    )


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: RowsTable,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """Attend from rows [heads, T, dim], whose keys and values are in the cache already.

    keys and values [slots, kv_heads, max_len, dim]; returns [T, heads, dim]. With a window, a row
    at position p sees columns above p - window only.
    """
    if query.stride(2) != 1:
        query = query.contiguous()
    num_heads, num_rows, dim = query.shape
    output = query.new_zeros(num_rows, num_heads, dim)
    group = num_heads // keys.shape[1]
    padded = max(triton.next_power_of_2(dim), MIN_TILE)
    precision = "ieee" if query.dtype == torch.float32 else "tf32"
    for chunk in table.chunks:
        num_rows = chunk.num_rows
        num_splits = chunk.num_splits
        sums = torch.empty(num_rows, num_heads, num_splits, 2, device=query.device)
        partial = torch.empty(num_rows, num_heads, num_splits, dim, device=query.device)
        kernels.attend[(chunk.num_tiles, keys.shape[1], num_splits)](
            query,
            keys,
            values,
            sums,
            partial,
            table.tiles_from(chunk),
            table.rows,
            table.columns,
            chunk.rows.start,
            query.stride(0),
            query.stride(1),
            keys.stride(0),
            keys.stride(1),
            scaling,
            window or 0,
            num_heads,
            num_splits,
            GROUP=group,
            TILE=max(MIN_TILE, triton.next_power_of_2(group)),
            DIM=dim,
            DIM_PADDED=padded,
            SPLIT_SIZE=SPLIT,
            BLOCK_SIZE=kernels.BLOCK,
            PRECISION=precision,
        )
        kernels.join_splits[(num_rows, num_heads)](
            sums,
            partial,
            output[chunk.rows],
            table.rows_from(chunk),
            num_heads,
            num_splits,
            DIM=dim,
            DIM_PADDED=padded,
            SPLIT_SIZE=SPLIT,
        )
    return output
