"""Attention of rows over the columns of the cache that each row sees, on a GPU."""

from __future__ import annotations

import torch
import triton

from diffuspec.models.kernels.triton import kernels
from diffuspec.models.kernels.triton.table import (
    LONG_SPLIT,
    MIN_TILE,
    NUM_SHORT_SPLITS,
    PAGE_SIZE,
    SPLIT,
    Chunk,
    ColumnTable,
    tile_size,
)

_SLOTS, _TILES_OF_SLOT = 8, 8  # programs for the tiles of a step, most of which are empty


_SPLITS = {"SPLIT_SIZE": SPLIT, "LONG_SIZE": LONG_SPLIT, "NUM_SHORT": NUM_SHORT_SPLITS}


def write_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: ColumnTable,
) -> None:
    """Write new rows [kv_heads, T, dim] into the cache, [pages, kv_heads, PAGE_SIZE, dim]."""
    if key.stride(2) != 1 or value.stride() != key.stride():
        key, value = key.contiguous(), value.contiguous()
    num_heads, num_rows, dim = key.shape
    tensors = key, value, keys, values, table.rows
    strides = *key.stride()[:2], *keys.stride()[:2]
    kernels.write_cache[(num_rows, num_heads)](
        *tensors, *strides, PAGE=PAGE_SIZE, DIM=dim, DIM_PADDED=triton.next_power_of_2(dim)
    )


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: ColumnTable,
    scaling: float,
    window: int | None,
) -> torch.Tensor:
    """Attend from rows [heads, T, dim], whose keys and values are already in the cache.

    keys and values [pages, kv_heads, PAGE_SIZE, dim]; returns [T, heads, dim]. With a window, a row
    at position p sees only columns above p - window.
    """
    if query.stride(2) != 1:
        query = query.contiguous()
    num_heads, num_rows, dim = query.shape
    make = query.new_empty if table.is_step else query.new_zeros  # prompts may have padding
    output = make(num_rows, num_heads, dim)
    for chunk in table.chunks:
        sums, partial = _attend_splits(query, keys, values, table, chunk, scaling, window)
        rows, to = table.rows_from(chunk), output[chunk.rows]
        kernels.join_splits[(chunk.num_rows, num_heads)](
            sums, partial, to, rows, chunk.num_splits, **_SPLITS, **_sizes(dim)
        )
    return output


def _attend_splits(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: ColumnTable,
    chunk: Chunk,
    scaling: float,
    window: int | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs of `join_splits`: sums [T, heads, splits, 2], outputs [..., dim]."""
    num_heads, num_kv_heads, dim = len(query), keys.shape[1], query.shape[2]
    shape = chunk.num_rows, num_heads, chunk.num_splits
    sums = torch.empty(*shape, 2, device=query.device)
    partial = torch.empty(*shape, dim, device=query.device)
    tables = table.tiles_from(chunk), table.rows, table.columns, table.pages
    strides = *query.stride()[:2], *keys.stride()[:2]
    group = num_heads // num_kv_heads
    num_slots = chunk.num_tiles
    if table.is_step:
        num_slots = max(triton.cdiv(num_slots, _TILES_OF_SLOT), min(num_slots, _SLOTS))
    kernels.attend[(num_slots, num_kv_heads, chunk.num_splits)](
        *(query, keys, values, sums, partial),
        *tables,
        chunk.num_tiles,
        chunk.rows.start,
        *strides,
        scaling,
        window or 0,
        **_SPLITS,
        GROUP=group,
        TILE=tile_size(group, query.dtype),
        BLOCK_SIZE=PAGE_SIZE,
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        **_sizes(dim),
    )
    return sums, partial


def _sizes(dim: int) -> dict[str, int]:
    padded = max(triton.next_power_of_2(dim), MIN_TILE)
    return {"DIM": dim, "DIM_PADDED": padded}
