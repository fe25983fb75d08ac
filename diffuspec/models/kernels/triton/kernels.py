"""The Triton kernels of `operations` and `attention`.

Each program computes whole rows, in an order that depends only on the row itself: the rest of the
forward changes no bit of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LOWEST = tl.constexpr(-1e30)


@triton.jit
def normalise(
    inputs, added, weight, sums, outputs, width, epsilon, ADDS: tl.constexpr, WIDTH: tl.constexpr
):
    """Write inputs / sqrt(mean(inputs^2) + epsilon) * weight, one row in each program."""
    at = tl.arange(0, WIDTH)
    mask = at < width
    first = tl.program_id(0).to(tl.int64) * width
    kind = inputs.dtype.element_ty
    row = tl.load(inputs + first + at, mask, 0.0).to(tl.float32)
    if ADDS:
        row = (row + tl.load(added + first + at, mask, 0.0).to(tl.float32)).to(kind)
        tl.store(sums + first + at, row, mask)
        row = row.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(row * row) / width + epsilon)
    normed = (row * scale).to(kind).to(tl.float32)
    normed *= tl.load(weight + at, mask, 0.0).to(tl.float32)
    tl.store(outputs + first + at, normed.to(kind), mask)


@triton.jit
def rotate(rows, cos, sin, row_stride, HALF: tl.constexpr, HALF_PADDED: tl.constexpr):
    """Rotate one head of one row in place."""
    at = tl.arange(0, HALF_PADDED)
    mask = at < HALF
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    low = rows + row * row_stride + head * 2 * HALF + at
    high = low + HALF
    angle = row * 2 * HALF + at
    x, y = tl.load(low, mask, 0.0).to(tl.float32), tl.load(high, mask, 0.0).to(tl.float32)
    cos_x, sin_x = tl.load(cos + angle, mask, 0.0), tl.load(sin + angle, mask, 0.0)
    cos_y, sin_y = tl.load(cos + angle + HALF, mask, 0.0), tl.load(sin + angle + HALF, mask, 0.0)
    kind = rows.dtype.element_ty
    tl.store(low, (x * cos_x.to(tl.float32) - y * sin_x.to(tl.float32)).to(kind), mask)
    tl.store(high, (y * cos_y.to(tl.float32) + x * sin_y.to(tl.float32)).to(kind), mask)


@triton.jit
def gate(inputs, outputs, width, SIZE: tl.constexpr):
    """Write silu(gates) * values for a part of one row, in which the gates come first."""
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    mask = at < width
    row = tl.program_id(0).to(tl.int64)
    gates = tl.load(inputs + row * 2 * width + at, mask, 0.0).to(tl.float32)
    values = tl.load(inputs + row * 2 * width + width + at, mask, 0.0).to(tl.float32)
    gated = gates / (1 + tl.exp(-gates)) * values
    tl.store(outputs + row * width + at, gated.to(outputs.dtype.element_ty), mask)


@triton.jit
def write_cache(
    key,
    value,
    keys,
    values,
    rows,
    head_stride,
    row_stride,
    page_stride,
    cache_head_stride,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
):
    """Write one row's key and value of one head into the cache, in pages of PAGE rows."""
    at = tl.arange(0, DIM_PADDED)
    mask = at < DIM
    row, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    to = tl.load(rows + 4 * row + 1)
    mask &= to + tl.zeros_like(at) >= 0  # otherwise it is padding
    source = head * head_stride + row.to(tl.int64) * row_stride + at
    page = (to // PAGE).to(tl.int64)
    target = page * page_stride + head * cache_head_stride + to % PAGE * DIM + at
    tl.store(keys + target, tl.load(key + source, mask), mask)
    tl.store(values + target, tl.load(value + source, mask), mask)


@triton.jit
def _add_block(
    queries,
    keys,
    values,
    is_there,
    is_seen,
    highest,
    total,
    output,
    scaling,
    PRECISION: tl.constexpr,
):
    """Add a block of columns to the running softmax of some queries; return the softmax.

    It consists of each query's highest score, sum of weights, and weighted sum of values.
    """
    block_keys = tl.load(keys, is_there, 0.0)
    scores = tl.dot(queries, tl.trans(block_keys), input_precision=PRECISION) * scaling
    scores = tl.where(is_seen, scores, float("-inf"))
    previous = highest
    highest = tl.maximum(highest, tl.max(scores, 1))
    weights = tl.exp(scores - highest[:, None])
    shrink = tl.exp(previous - highest)
    total = total * shrink + tl.sum(weights, 1)
    block_values = tl.load(values, is_there, 0.0)
    weighted = tl.dot(weights.to(block_values.dtype), block_values, input_precision=PRECISION)
    return highest, total, output * shrink[:, None] + weighted


@triton.jit
def _attend_columns(
    queries,
    keys,
    values,
    pages,
    page_stride,
    listed,
    limit,
    lowest,
    below,
    begin,
    end,
    base,
    most,
    scaling,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the running softmax of some queries over columns from `begin` to `end`, page by page.

    keys and values are those of a head in page 0; pages are the sequence's, of BLOCK_SIZE rows.
    A query sees columns above its `lowest` and below its `limit`. No query sees columns up to
    `below` or from `most` on; columns from `base` on are listed.
    """
    TILE: tl.constexpr = queries.shape[0]
    DIM_PADDED: tl.constexpr = queries.shape[1]
    at = tl.arange(0, DIM_PADDED)[None, :]
    in_dim = at < DIM
    highest = tl.full([TILE], _LOWEST, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    output = tl.zeros([TILE, DIM_PADDED], tl.float32)
    for start in range(begin, tl.minimum(end, most), BLOCK_SIZE):
        stand = start + tl.arange(0, BLOCK_SIZE)  # positions of the columns
        is_listed = (stand >= base) & (stand < most)
        first = tl.load(pages + start // BLOCK_SIZE) * BLOCK_SIZE - start
        row = tl.where(stand < base, first + stand, tl.load(listed + stand - base, is_listed, 0))
        of_page = (row // BLOCK_SIZE).to(tl.int64) * page_stride
        there = (of_page + row % BLOCK_SIZE * DIM)[:, None] + at
        is_there = ((stand > below) & (stand < most))[:, None] & in_dim
        is_seen = (stand[None, :] < limit[:, None]) & (stand[None, :] > lowest[:, None])
        highest, total, output = _add_block(
            queries,
            keys + there,
            values + there,
            is_there,
            is_seen,
            highest,
            total,
            output,
            scaling,
            PRECISION,
        )
    return highest, total, output


@triton.jit
def _attend_tile(
    query,
    keys,
    values,
    sums,
    partial,
    tiles,
    rows,
    columns,
    pages,
    begin,
    end,
    first_kept,
    head_stride,
    row_stride,
    page_stride,
    cache_head_stride,
    scaling,
    window,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend from the rows of one tile; see `attend`. `tiles` points to it."""
    first_row, base, listed_at = tl.load(tiles), tl.load(tiles + 2), tl.load(tiles + 3)
    most, num_shared = tl.load(tiles + 4), tl.load(tiles + 5)
    num_rows = tl.where(begin < num_shared, tl.load(tiles + 1), 1)
    if (begin < most) & (num_rows > 0):
        kv_head, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
        place = tl.arange(0, TILE)
        row = first_row + place // GROUP
        is_row = place < num_rows * GROUP
        head = kv_head * GROUP + place % GROUP
        limit = tl.load(rows + 4 * row + 2, is_row, 0)
        lowest = tl.where(window > 0, tl.load(rows + 4 * row + 3, is_row, 0) - window, -1)
        below = tl.min(tl.where(is_row, lowest, most), 0)  # columns that no row of the tile sees
        at = tl.arange(0, DIM_PADDED)[None, :]
        in_dim = at < DIM
        from_query = (head * head_stride + row.to(tl.int64) * row_stride)[:, None] + at
        queries = tl.load(query + from_query, is_row[:, None] & in_dim, 0.0)
        highest, total, output = _attend_columns(
            queries,
            keys + kv_head * cache_head_stride,
            values + kv_head * cache_head_stride,
            pages + tl.load(rows + 4 * first_row),
            page_stride,
            columns + listed_at,
            limit,
            lowest,
            below,
            begin,
            end,
            base,
            most,
            scaling,
            DIM,
            BLOCK_SIZE,
            PRECISION,
        )
        num_heads, num_splits = tl.num_programs(1) * GROUP, tl.num_programs(2)
        to = ((row - first_kept).to(tl.int64) * num_heads + head) * num_splits + split
        tl.store(sums + 2 * to, highest, is_row)
        tl.store(sums + 2 * to + 1, total, is_row)
        tl.store(partial + to[:, None] * DIM + at, output, is_row[:, None] & in_dim)


@triton.jit(
    do_not_specialize=["num_tiles", "first_kept", "window"],
    do_not_specialize_on_alignment=["tiles", "rows", "columns", "pages"],  # parts of one tensor
)
def attend(
    query,
    keys,
    values,
    sums,
    partial,
    tiles,
    rows,
    columns,
    pages,
    num_tiles,
    first_kept,
    head_stride,
    row_stride,
    page_stride,
    cache_head_stride,
    scaling,
    window,
    SPLIT_SIZE: tl.constexpr,
    LONG_SIZE: tl.constexpr,
    NUM_SHORT: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend from the rows of tiles, for all query heads of one key head, over one split.

    The first NUM_SHORT splits have SPLIT_SIZE columns, the others LONG_SIZE. Columns are at their
    positions in a chain: those from a tile's `base` on are listed. Writes the unscaled output, the
    largest score and the sum of weights of the rows from first_kept on. A program takes every n-th
    tile if there are n for a split and head.
    """
    split = tl.program_id(2)
    begin = tl.minimum(split, NUM_SHORT) * SPLIT_SIZE
    begin += tl.maximum(split - NUM_SHORT, 0) * LONG_SIZE
    end = begin + tl.where(split < NUM_SHORT, SPLIT_SIZE, LONG_SIZE)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        _attend_tile(
            query,
            keys,
            values,
            sums,
            partial,
            tiles + 6 * tile,
            rows,
            columns,
            pages,
            begin,
            end,
            first_kept,
            head_stride,
            row_stride,
            page_stride,
            cache_head_stride,
            scaling,
            window,
            GROUP,
            TILE,
            DIM,
            DIM_PADDED,
            BLOCK_SIZE,
            PRECISION,
        )


@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["rows"])
def join_splits(
    sums,
    partial,
    outputs,
    rows,
    num_splits,
    SPLIT_SIZE: tl.constexpr,
    LONG_SIZE: tl.constexpr,
    NUM_SHORT: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
):
    """Join the results of all splits for one row and head, one after another."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, DIM_PADDED)
    in_dim = at < DIM
    limit = tl.load(rows + 4 * row + 2)
    to = row * tl.num_programs(1) + head
    num_short = (limit + SPLIT_SIZE - 1) // SPLIT_SIZE
    num_long = (limit - NUM_SHORT * SPLIT_SIZE + LONG_SIZE - 1) // LONG_SIZE
    num_seen = tl.minimum(num_short, NUM_SHORT) + tl.maximum(num_long, 0)
    highest = tl.full([1], _LOWEST, tl.float32)
    total = tl.zeros([1], tl.float32)
    output = tl.zeros([DIM_PADDED], tl.float32)
    for split in range(num_seen):
        place = to * num_splits + split
        of_split = tl.load(sums + 2 * place)
        previous = highest
        highest = tl.maximum(highest, of_split)
        shrink, grow = tl.exp(previous - highest), tl.exp(of_split - highest)
        total = total * shrink + tl.load(sums + 2 * place + 1) * grow
        output = output * shrink + grow * tl.load(partial + place * DIM + at, in_dim, 0.0)
    total = tl.where(limit > 0, total, 1.0)
    tl.store(outputs + to * DIM + at, (output / total).to(outputs.dtype.element_ty), in_dim)
