"""Attention of rows over the columns of the cache that each row sees, on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from diffuspec.models.kernels.triton import kernels
from diffuspec.models.kernels.triton.table import (
    MIN_TILE,
    Chunk,
    ColumnTable,
    tile_size,
)

_SLOTS, _TILES_OF_SLOT = 8, 8  # programs for the tiles of a step, most of which are empty


class Rotation(NamedTuple):
    """How queries and keys are changed before they are used."""

    cos: torch.Tensor  # [T, dim]
    sin: torch.Tensor  # [T, dim]
    norms: torch.Tensor | None  # [2, dim]: weights of queries' and of keys' norms
    epsilon: float


def place_heads(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rotation: Rotation | None,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: ColumnTable,
) -> torch.Tensor:
    """Write new rows [kv_heads, T, dim] into the cache, and return queries [heads, T, dim].

    keys and values [pages, kv_heads, PAGE_SIZE, dim]. The strides of query, key and value are the
    same. Without a rotation, there may be no queries.
    """
    (num_heads, num_rows, dim), num_kv_heads = query.shape, len(key)
    assert query.stride() == key.stride() == value.stride() and key.stride(2) == 1
    assert keys.is_contiguous() and values.is_contiguous()
    queries = query.new_empty(num_rows, num_heads, dim)
    cos, sin, norms, epsilon = rotation or Rotation(key, key, None, 0.0)
    kernels.place_heads[(num_rows, num_heads + 2 * num_kv_heads)](
        *(query, key, value, cos, sin, key if norms is None else norms),
        *(queries, keys, values, table.rows),
        *key.stride()[:2],
        epsilon,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        ROTATES=rotation is not None,
        HAS_NORMS=norms is not None,
        DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim),
    )
    return queries.transpose(0, 1)


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
            sums, partial, to, rows, chunk.num_splits, **_sizes(dim)
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
    assert keys.is_contiguous() and values.is_contiguous()
    group = num_heads // num_kv_heads
    num_slots = chunk.num_tiles
    if table.is_step:
        num_slots = max(triton.cdiv(num_slots, _TILES_OF_SLOT), min(num_slots, _SLOTS))
    kernels.attend[(num_slots, num_kv_heads, chunk.num_splits)](
        *(query, keys, values, sums, partial),
        *tables,
        chunk.num_tiles,
        chunk.rows.start,
        *query.stride()[:2],
        scaling,
        window or 0,
        GROUP=group,
        TILE=tile_size(group, query.dtype, table.is_wide),
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
        **_sizes(dim),
        num_warps=8 if table.is_wide else 4,
    )
    return sums, partial


def _sizes(dim: int) -> dict[str, int]:
    padded = max(triton.next_power_of_2(dim), MIN_TILE)
    return {"DIM": dim, "DIM_PADDED": padded}
