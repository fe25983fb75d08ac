"""The Triton kernels of `operations` and `attention`.

Each program computes whole rows, in an order that depends only on the row itself: the rest of the
forward changes no bit of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffuspec.models.kernels.triton import table

_LOWEST = tl.constexpr(-1e30)
_PAGE = tl.constexpr(table.PAGE_SIZE)
_SPLIT, _LONG_SPLIT = tl.constexpr(table.SPLIT), tl.constexpr(table.LONG_SPLIT)
_NUM_SHORT = tl.constexpr(table.NUM_SHORT_SPLITS)


@triton.jit
def _norm_scale(row, width, epsilon):
    return 1 / tl.sqrt(tl.sum(row * row) / width + epsilon)


@triton.jit
def _scaled(row, scale, weight, kind: tl.constexpr):
    """Return row * scale * weight, rounded to a type after each product."""
    return ((row * scale).to(kind).to(tl.float32) * weight).to(kind)


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
    weights = tl.load(weight + at, mask, 0.0).to(tl.float32)
    scale = _norm_scale(row, width, epsilon)
    tl.store(outputs + first + at, _scaled(row, scale, weights, kind), mask)


@triton.jit
def gated(gates, values):
    """Return silu(gates) * values."""
    return gates / (1 + tl.exp(-gates)) * values


@triton.jit
def gate(inputs, outputs, width, SIZE: tl.constexpr):
    """Write silu(gates) * values for a part of one row, in which the gates come first."""
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    mask = at < width
    row = tl.program_id(0).to(tl.int64)
    gates = tl.load(inputs + row * 2 * width + at, mask, 0.0).to(tl.float32)
    values = tl.load(inputs + row * 2 * width + width + at, mask, 0.0).to(tl.float32)
    found = gated(gates, values).to(outputs.dtype.element_ty)
    tl.store(outputs + row * width + at, found, mask)


@triton.jit
def place_heads(
    query,
    key,
    value,
    cos,
    sin,
    norms,
    queries,
    keys,
    values,
    rows,
    head_stride,
    row_stride,
    epsilon,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    ROTATES: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
):
    """Write one head of one row, after its norm and rotation if it is no value.

    Queries are written as [T, NUM_HEADS, DIM], keys and values into the pages of the cache. Norms
    are those of `normalise`.
    """
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
    is_value = head >= NUM_HEADS + NUM_KV_HEADS
    at = tl.arange(0, DIM_PADDED)
    mask = at < DIM
    if head < NUM_HEADS:
        source = query + head * head_stride + row * row_stride
    elif is_value:
        source = value + kv_head * head_stride + row * row_stride
    else:
        source = key + kv_head * head_stride + row * row_stride
    found = tl.load(source + at, mask, 0.0)
    if ROTATES:  # noqa: SIM102  # known when it is compiled, the other when it runs
        if not is_value:
            is_low = at < DIM // 2
            other = tl.where(is_low, at + DIM // 2, at - DIM // 2)  # what it is rotated with
            kind: tl.constexpr = found.dtype
            x, y = found.to(tl.float32), tl.load(source + other, mask, 0.0).to(tl.float32)
            if HAS_NORMS:
                weights = norms + tl.where(head < NUM_HEADS, 0, DIM)
                scale = _norm_scale(x, DIM, epsilon)
                of_x = tl.load(weights + at, mask, 0.0).to(tl.float32)
                of_y = tl.load(weights + other, mask, 0.0).to(tl.float32)
                x = _scaled(x, scale, of_x, kind).to(tl.float32)
                y = _scaled(y, scale, of_y, kind).to(tl.float32)
            x *= tl.load(cos + row * DIM + at, mask, 0.0).to(tl.float32)
            y *= tl.load(sin + row * DIM + at, mask, 0.0).to(tl.float32)
            found = tl.where(is_low, x - y, x + y).to(kind)
    to = tl.load(rows + 4 * row + 1)  # row of the cache; negative for padding
    is_written = mask & (to + tl.zeros_like(at) >= 0)
    target = ((to // _PAGE).to(tl.int64) * NUM_KV_HEADS + kv_head) * _PAGE + to % _PAGE
    if head < NUM_HEADS:
        tl.store(queries + (row * NUM_HEADS + head) * DIM + at, found, mask)
    elif is_value:
        tl.store(values + target * DIM + at, found, is_written)
    else:
        tl.store(keys + target * DIM + at, found, is_written)


@triton.jit
def _attend_columns(
    queries,
    keys,
    values,
    pages,
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
    PRECISION: tl.constexpr,
):
    """Return the running softmax of some queries over columns from `begin` to `end`, page by page.

    It consists of each query's highest score, sum of weights, and weighted sum of values.
    keys and values are those of a head in page 0; pages are the sequence's, of _PAGE rows.
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
    for start in range(begin, tl.minimum(end, most), _PAGE):
        stand = start + tl.arange(0, _PAGE)  # positions of the columns
        is_listed = (stand >= base) & (stand < most)
        first = tl.load(pages + start // _PAGE) * _PAGE - start
        row = tl.where(stand < base, first + stand, tl.load(listed + stand - base, is_listed, 0))
        of_page = (row // _PAGE).to(tl.int64) * tl.num_programs(1) * (_PAGE * DIM)
        there = (of_page + row % _PAGE * DIM)[:, None] + at
        is_there = ((stand > below) & (stand < most))[:, None] & in_dim
        is_seen = (stand[None, :] < limit[:, None]) & (stand[None, :] > lowest[:, None])
        block_keys = tl.load(keys + there, is_there, 0.0)
        scores = tl.dot(queries, tl.trans(block_keys), input_precision=PRECISION) * scaling
        scores = tl.where(is_seen, scores, float("-inf"))
        previous = highest
        highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp(scores - highest[:, None])
        shrink = tl.exp(previous - highest)
        total = total * shrink + tl.sum(weights, 1)
        block_values = tl.load(values + there, is_there, 0.0)
        weighted = tl.dot(weights.to(block_values.dtype), block_values, input_precision=PRECISION)
        output = output * shrink[:, None] + weighted
    return highest, total, output


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
    scaling,
    window,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend from the rows of tiles, for all query heads of one key head, over one split.

    The first _NUM_SHORT splits have _SPLIT columns, the others _LONG_SPLIT. Columns are at their
    positions in a chain: those from a tile's `base` on are listed. Writes the unscaled output, the
    largest score and the sum of weights of the rows from first_kept on. A program takes every n-th
    tile if there are n for a split and head.
    """
    kv_head, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    begin = tl.minimum(split, _NUM_SHORT) * _SPLIT
    begin += tl.maximum(split - _NUM_SHORT, 0) * _LONG_SPLIT
    end = begin + tl.where(split < _NUM_SHORT, _SPLIT, _LONG_SPLIT)
    place, at = tl.arange(0, TILE), tl.arange(0, DIM_PADDED)[None, :]
    head = kv_head * GROUP + place % GROUP
    num_heads, num_splits = tl.num_programs(1) * GROUP, tl.num_programs(2)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        fields = tiles + 6 * tile
        first_row, base, listed_at = tl.load(fields), tl.load(fields + 2), tl.load(fields + 3)
        most, num_shared = tl.load(fields + 4), tl.load(fields + 5)
        num_rows = tl.where(begin < num_shared, tl.load(fields + 1), 1)
        if (begin < most) & (num_rows > 0):
            row = first_row + place // GROUP
            is_row = place < num_rows * GROUP
            is_there = is_row[:, None] & (at < DIM)
            limit = tl.load(rows + 4 * row + 2, is_row, 0)
            lowest = tl.where(window > 0, tl.load(rows + 4 * row + 3, is_row, 0) - window, -1)
            below = tl.min(tl.where(is_row, lowest, most), 0)  # no row of the tile sees these
            from_query = (head * head_stride + row.to(tl.int64) * row_stride)[:, None] + at
            highest, total, output = _attend_columns(
                tl.load(query + from_query, is_there, 0.0),
                keys + kv_head * (_PAGE * DIM),
                values + kv_head * (_PAGE * DIM),
                pages + tl.load(rows + 4 * first_row),
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
                PRECISION,
            )
            to = ((row - first_kept).to(tl.int64) * num_heads + head) * num_splits + split
            tl.store(sums + 2 * to, highest, is_row)
            tl.store(sums + 2 * to + 1, total, is_row)
            tl.store(partial + to[:, None] * DIM + at, output, is_there)


@triton.jit(do_not_specialize=["num_splits"], do_not_specialize_on_alignment=["rows"])
def join_splits(
    sums,
    partial,
    outputs,
    rows,
    num_splits,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
):
    """Join the results of all splits for one row and head, one after another."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, DIM_PADDED)
    in_dim = at < DIM
    limit = tl.load(rows + 4 * row + 2)
    to = row * tl.num_programs(1) + head
    num_short = (limit + _SPLIT - 1) // _SPLIT
    num_long = (limit - _NUM_SHORT * _SPLIT + _LONG_SPLIT - 1) // _LONG_SPLIT
    num_seen = tl.minimum(num_short, _NUM_SHORT) + tl.maximum(num_long, 0)
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
