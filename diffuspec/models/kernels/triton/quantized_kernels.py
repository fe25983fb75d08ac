"""The Triton kernels of products with quantised weights.

A program computes some outputs of a tile of rows. A row's sums add the inputs in an order that
depends only on the weight's shape, and no program depends on another.
"""

from __future__ import annotations

import triton
import triton.language as tl

_LARGEST = tl.constexpr(3.4028234e38)  # the largest finite number
_ROUNDS = tl.constexpr(12582912.0)  # adding and subtracting this rounds to the nearest integer


@triton.jit
def _numbers(
    words, place: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, kind: tl.constexpr
):
    """Return the numbers at one place of words, minus ZERO, in a type in which they are exact.

    Numbers are put into the last bits of a floating-point number, whose value is then subtracted:
    GPUs convert integers far more slowly.
    """
    bits = (words >> (place * BITS)) & ((1 << BITS) - 1)
    if kind == tl.bfloat16 and BITS == 4:
        return (bits | 0x4300).to(tl.int16).to(tl.bfloat16, bitcast=True) - (128.0 + ZERO)
    elif kind == tl.float16:
        return (bits | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - (1024.0 + ZERO)
    else:
        wide = (bits | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)
        return wide.to(kind)


@triton.jit
def _of_span(
    supers, codes, span, place, OUTPUTS: tl.constexpr, RATIO: tl.constexpr, CODES: tl.constexpr
):
    """Return the scales or offsets of a span of inputs, [OUTPUTS]; RATIO spans share supers."""
    found = tl.load(supers + (span // RATIO) * OUTPUTS + place).to(tl.float32)
    if CODES:
        found *= tl.load(codes + span * OUTPUTS + place).to(tl.float32)
    return found


@triton.jit
def _multiply_span(
    packed,
    from_row,
    is_row,
    zeros,
    first_of_chunk,
    num_inputs,
    part: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    UNIT: tl.constexpr,
    SPAN: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return the sums of a chunk's part-th span, [OUTPUTS, ROWS], without scales."""
    UNITS: tl.constexpr = SPAN // UNIT
    KIND: tl.constexpr = from_row.dtype.element_ty
    at = tl.arange(0, UNIT)
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for unit in tl.static_range(UNITS):
        first = first_of_chunk + (part * UNITS + unit) * UNIT
        there = is_row[None, :]
        if not IS_WHOLE:
            there &= (first + at < num_inputs)[:, None]
        rows = tl.load(from_row + first, there, 0.0)
        numbers = _numbers(packed, part * UNITS + unit, BITS, ZERO, KIND)
        if HAS_ZEROS:
            numbers -= tl.load(zeros).to(tl.float32).to(KIND)[:, None]
        sums = tl.dot(numbers, rows, sums, input_precision=PRECISION)
    return sums


@triton.jit(do_not_specialize=["num_rows", "num_chunks", "chunks_per_split", "num_supers"])
def multiply_groups(
    inputs,
    input_sums,
    words,
    supers,
    codes,
    super_offsets,
    offset_codes,
    zeros,
    outputs,
    num_rows,
    num_inputs,
    num_outputs,
    row_stride,
    split_stride,
    num_chunks,
    chunks_per_split,
    num_supers,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    UNIT: tl.constexpr,
    SPAN: tl.constexpr,
    RATIO: tl.constexpr,
    HAS_CODES: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_OFFSET_CODES: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write the sums of a tile of rows over one split of the inputs, [splits, rows, outputs].

    A chunk of inputs is the content of a tile of words: UNIT 32-bit words for each output, whose
    numbers at one place belong to UNIT successive inputs. The integers of a span are multiplied
    first, then their sum by the span's scale; offsets are multiplied by the sum of the span's
    inputs. With IS_WHOLE, no chunk extends beyond the inputs.
    """
    tile, block, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    PLACES: tl.constexpr = 32 // BITS
    SPANS: tl.constexpr = UNIT * PLACES // SPAN  # spans in a chunk
    row = tile * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    place, at = tl.arange(0, OUTPUTS), tl.arange(0, UNIT)
    words += block * num_chunks * (OUTPUTS * UNIT) + place[:, None] * UNIT + at[None, :]
    supers += block * num_supers * OUTPUTS
    super_offsets += block * num_supers * OUTPUTS
    of_spans = block * num_chunks * (SPANS * OUTPUTS)
    codes += of_spans
    offset_codes += of_spans
    zeros += of_spans
    from_row = inputs + row.to(tl.int64)[None, :] * num_inputs + at[:, None]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    begin = split * chunks_per_split
    for chunk in range(begin, tl.minimum(begin + chunks_per_split, num_chunks)):
        packed = tl.load(words + chunk * (OUTPUTS * UNIT))
        for part in tl.static_range(SPANS):
            span = chunk * SPANS + part
            sums = _multiply_span(
                packed,
                from_row,
                is_row,
                zeros + span * OUTPUTS + place,
                chunk * PLACES * UNIT,
                num_inputs,
                part,
                BITS,
                ZERO,
                UNIT,
                SPAN,
                HAS_ZEROS,
                IS_WHOLE,
                ROWS,
                OUTPUTS,
                PRECISION,
            )
            scale = _of_span(supers, codes, span, place, OUTPUTS, RATIO, HAS_CODES)
            total += sums * scale[:, None]
            if HAS_OFFSETS:
                offset = _of_span(
                    super_offsets, offset_codes, span, place, OUTPUTS, RATIO, HAS_OFFSET_CODES
                )
                of_inputs = tl.load(input_sums + span * num_rows + row, is_row, 0.0)
                total += offset[:, None] * of_inputs[None, :]
    output = block * OUTPUTS + place
    to = outputs + split.to(tl.int64) * split_stride + row.to(tl.int64)[None, :] * row_stride
    tl.store(to + output[:, None], total, is_row[None, :] & (output < num_outputs)[:, None])


@triton.jit(do_not_specialize=["num_rows", "num_spans"])
def sum_spans(
    inputs, sums, num_rows, num_inputs, num_spans, SPAN: tl.constexpr, SPANS: tl.constexpr
):
    """Write the sums of one row's inputs over SPANS spans, [spans, rows]."""
    row = tl.program_id(0).to(tl.int64)
    span = tl.program_id(1) * SPANS + tl.arange(0, SPANS)
    at = span[:, None] * SPAN + tl.arange(0, SPAN)[None, :]
    parts = tl.load(inputs + row * num_inputs + at, at < num_inputs, 0.0).to(tl.float32)
    tl.store(sums + span * num_rows + row, tl.sum(parts, 1), span < num_spans)


@triton.jit
def add_splits(
    sums,
    scales,
    row_scales,
    biases,
    outputs,
    num_outputs,
    split_stride,
    output_stride,
    SPLITS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Sum the splits of one row's outputs, one after another; scale the sums and add a bias."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    mask = at < num_outputs
    sums += row * num_outputs + at
    total = tl.load(sums, mask, 0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums + split * split_stride, mask, 0)
    found = total.to(tl.float32)
    if HAS_SCALES:
        found *= tl.load(row_scales + row) * tl.load(scales + at, mask, 0.0)
    if HAS_BIAS:
        found += tl.load(biases + at, mask, 0.0).to(tl.float32)
    tl.store(outputs + row * output_stride + at, found.to(outputs.dtype.element_ty), mask)


@triton.jit
def round_rows(inputs, numbers, scales, num_inputs, WIDTH: tl.constexpr):
    """Scale one row so that its largest magnitude becomes 127, and round it to integers."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    mask = at < num_inputs
    found = tl.load(inputs + row * num_inputs + at, mask, 0.0).to(tl.float32)
    is_finite = tl.min(tl.where(tl.abs(found) <= _LARGEST, 1, 0), 0) == 1
    found = tl.where(is_finite, found, 0.0)
    most = tl.max(tl.abs(found), 0)
    factor = tl.where(most > 0, tl.div_rn(127.0, tl.where(most > 0, most, 1.0)), 0.0)
    rounded = found * factor + _ROUNDS - _ROUNDS
    tl.store(numbers + row * num_inputs + at, rounded.to(tl.int8), mask)
    tl.store(scales + row, tl.where(is_finite, tl.div_rn(most, 127.0), float("nan")))


@triton.jit(do_not_specialize=["num_rows"])
def multiply_int8(
    inputs,
    weight,
    sums,
    num_rows,
    num_inputs,
    num_outputs,
    split_stride,
    inputs_per_split,
    UNIT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Write the sums of a tile of rows over one split of the inputs, [splits, rows, outputs]."""
    tile, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tile * ROWS + tl.arange(0, ROWS)
    output = block * OUTPUTS + tl.arange(0, OUTPUTS)
    at = tl.arange(0, UNIT)
    is_row, is_output = row < num_rows, output < num_outputs
    from_row = inputs + row.to(tl.int64)[None, :] * num_inputs + at[:, None]
    from_output = weight + output.to(tl.int64)[:, None] * num_inputs + at[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.int32)
    begin = split * inputs_per_split
    for first in range(begin, tl.minimum(begin + inputs_per_split, num_inputs), UNIT):
        is_input = first + at < num_inputs
        numbers = tl.load(from_output + first, is_output[:, None] & is_input[None, :], 0)
        rows = tl.load(from_row + first, is_row[None, :] & is_input[:, None], 0)
        total = tl.dot(numbers, rows, total, out_dtype=tl.int32)
    to = sums + split.to(tl.int64) * split_stride + row.to(tl.int64)[None, :] * num_outputs
    tl.store(to + output[:, None], total, is_row[None, :] & is_output[:, None])
