"""The Triton kernels of products with quantised weights.

A program computes some outputs of a tile of rows. A row's sums add the inputs in an order that
depends only on the weight's shape, and no program depends on another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffuspec.models.kernels.triton.kernels import gated
from diffuspec.models.kernels.triton.linear_kernels import finished

_BLOCK = tl.constexpr(128)  # outputs in a block of a matrix
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
def _of_field(scales, start: tl.constexpr, index: tl.constexpr, kind: tl.constexpr):
    """Return a number of the field that starts at a word of a chunk, [OUTPUTS] float32."""
    PER_WORD: tl.constexpr = 32 // kind.primitive_bitwidth
    words = tl.load(scales + (start + index // PER_WORD) * _BLOCK)
    if kind == tl.int8:
        return _numbers(words, index % PER_WORD, 8, 128, tl.float32)
    elif kind == tl.float32:
        return words.to(tl.float32, bitcast=True)
    else:
        return (words >> (index % PER_WORD * 16)).to(tl.int16).to(kind, bitcast=True).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows", "num_chunks", "chunks_per_split"])
def multiply_groups(
    inputs,
    input_sums,
    words,
    scales,
    outputs,
    num_rows,
    num_inputs,
    num_outputs,
    num_chunks,
    chunks_per_split,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    UNIT: tl.constexpr,
    SPANS: tl.constexpr,
    RATIO: tl.constexpr,
    SCALE_WORDS: tl.constexpr,
    SUPER: tl.constexpr,
    CODES: tl.constexpr,
    SUPER_OFFSETS: tl.constexpr,
    OFFSET_CODES: tl.constexpr,
    ZEROS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write the sums of a tile of rows over one split of the inputs, [splits, rows, outputs].

    See `GpuMatrix` for words and scales. The integers of a span are multiplied first, then their
    sum by the span's scale; offsets are multiplied by the sum of the span's inputs. Scales and
    offsets are of the type SUPER, RATIO spans share them, and codes multiply them. CODES to ZEROS
    are the words at which these fields start, or -1. With IS_WHOLE, no chunk extends beyond the
    inputs.
    """
    tile, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    CHUNK: tl.constexpr = UNIT * (32 // BITS)
    UNITS: tl.constexpr = CHUNK // UNIT // SPANS  # in a span
    kind: tl.constexpr = inputs.dtype.element_ty
    row, at = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, UNIT)
    is_row = row < num_rows
    output = part * OUTPUTS + tl.arange(0, OUTPUTS)
    first_chunk = (part * OUTPUTS // _BLOCK).to(tl.int64) * num_chunks
    lane = output % _BLOCK
    words += first_chunk * (_BLOCK * UNIT) + lane[:, None] * UNIT + at[None, :]
    scales += first_chunk * (_BLOCK * SCALE_WORDS) + lane
    from_row = inputs + row.to(tl.int64)[None, :] * num_inputs + at[:, None]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    begin = split * chunks_per_split
    for chunk in range(begin, tl.minimum(begin + chunks_per_split, num_chunks)):
        packed = tl.load(words + chunk * (_BLOCK * UNIT))
        of_chunk = scales + chunk * (_BLOCK * SCALE_WORDS)
        for span in tl.static_range(SPANS):
            sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
            for unit in tl.static_range(UNITS):
                first = chunk * CHUNK + (span * UNITS + unit) * UNIT
                is_there = is_row[None, :]
                if not IS_WHOLE:
                    is_there &= (first + at < num_inputs)[:, None]
                rows = tl.load(from_row + first, is_there, 0.0)
                numbers = _numbers(packed, span * UNITS + unit, BITS, ZERO, kind)
                if ZEROS >= 0:
                    numbers -= _of_field(of_chunk, ZEROS, span, tl.int8).to(kind)[:, None]
                sums = tl.dot(numbers, rows, sums, input_precision=PRECISION)
            scale = _of_field(of_chunk, 0, span // RATIO, SUPER)
            if CODES >= 0:
                scale *= _of_field(of_chunk, CODES, span, tl.int8)
            total += sums * scale[:, None]
            if SUPER_OFFSETS >= 0:
                offset = _of_field(of_chunk, SUPER_OFFSETS, span // RATIO, SUPER)
                if OFFSET_CODES >= 0:
                    offset *= _of_field(of_chunk, OFFSET_CODES, span, tl.int8)
                from_sum = input_sums + (chunk * SPANS + span) * num_rows + row
                total += offset[:, None] * tl.load(from_sum, is_row, 0.0)[None, :]
    to = (split.to(tl.int64) * num_rows + row.to(tl.int64)[None, :]) * num_outputs
    is_there = is_row[None, :] & (output < num_outputs)[:, None]
    tl.store(outputs + to + output[:, None], total, is_there)


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
def _joined(
    sums,
    scales,
    row_scale,
    split_stride,
    is_there,
    SPLITS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """Return the sums of splits, one after another, times their scales."""
    total = tl.load(sums, is_there, 0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums + split * split_stride, is_there, 0)
    found = total.to(tl.float32)
    if HAS_SCALES:
        found *= tl.load(row_scale) * tl.load(scales, is_there, 0.0)
    return found


@triton.jit
def add_splits(
    sums,
    scales,
    row_scales,
    biases,
    added,
    outputs,
    num_outputs,
    split_stride,
    output_stride,
    SPLITS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    GATES: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Write the sums of the splits of one row's outputs, as `linear_kernels.multiply` ends."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    is_there = at < num_outputs
    kind: tl.constexpr = outputs.dtype.element_ty
    sums += row * ((2 if GATES else 1) * num_outputs) + at
    row_scales += row
    found = _joined(sums, scales + at, row_scales, split_stride, is_there, SPLITS, HAS_SCALES)
    to = row * output_stride + at
    if GATES:
        values = _joined(
            sums + num_outputs,
            scales + num_outputs + at,
            row_scales,
            split_stride,
            is_there,
            SPLITS,
            HAS_SCALES,
        )
        gates = found.to(kind).to(tl.float32)
        found = gated(gates, values.to(kind).to(tl.float32)).to(kind)
    else:
        found = finished(found, biases + at, added + to, is_there, is_there, kind, HAS_BIAS, ADDS)
    tl.store(outputs + to, found, is_there)


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
