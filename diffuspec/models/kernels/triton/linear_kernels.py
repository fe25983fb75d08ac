"""The Triton kernel of products with weights in 16 or 32 bits.

The weights are the first operand, so that tiles of any number of rows use one instruction. A row's
sums add the inputs in ascending order, and no program depends on another.
"""

from __future__ import annotations

import triton
import triton.language as tl

from diffuspec.models.kernels.triton.kernels import gated


@triton.jit
def finished(
    sums,
    bias,
    added,
    is_output,
    is_there,
    kind: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
):
    """Return sums in a type, plus their biases, plus numbers to add; each sum is rounded.

    bias and added point to the numbers, which are there where is_output and is_there are true.
    """
    found = sums.to(kind)
    if HAS_BIAS:
        biases = tl.load(bias, is_output, 0.0).to(tl.float32)
        found = (found.to(tl.float32) + biases).to(kind)
    if ADDS:
        more = tl.load(added, is_there, 0.0).to(tl.float32)
        found = (more + found.to(tl.float32)).to(kind)
    return found


@triton.jit
def _weights(weight, from_output, output, input, is_there, HAS_DESCRIPTOR: tl.constexpr):
    """Return the weights of outputs and a unit of inputs, from the given ones on."""
    if HAS_DESCRIPTOR:
        return weight.load([output, input])
    else:
        return tl.load(from_output + input, is_there, 0.0)


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    inputs,
    weight,
    bias,
    added,
    outputs,
    num_rows,
    num_inputs,
    num_outputs,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    UNIT: tl.constexpr,
    HAS_DESCRIPTOR: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    GATES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Write the products of a tile of rows with the weights of some outputs, plus their bias.

    Programs that need the same weights are neighbours. The product is rounded before the bias is
    added, and again before `added`, [rows, outputs], is. With GATES, the weight has num_outputs
    gates, then as many values, and silu(gates) * values is written. With HAS_DESCRIPTOR, `weight`
    is a descriptor of blocks [OUTPUTS, UNIT]. With IS_WHOLE, no unit extends beyond the inputs.
    """
    num_tiles = tl.cdiv(num_rows, ROWS)
    first_output = tl.program_id(0) // num_tiles * OUTPUTS
    row = tl.program_id(0) % num_tiles * ROWS + tl.arange(0, ROWS)
    output, at = first_output + tl.arange(0, OUTPUTS), tl.arange(0, UNIT)
    is_row, is_output = row < num_rows, output < num_outputs
    from_row = inputs + row.to(tl.int64)[:, None] * num_inputs + at[None, :]
    if HAS_DESCRIPTOR:
        from_output, from_value = weight, weight
    else:
        from_output = weight + output.to(tl.int64)[:, None] * num_inputs + at[None, :]
        value = (num_outputs + output).to(tl.int64)
        from_value = weight + value[:, None] * num_inputs + at[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    values = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for first in range(0, num_inputs, UNIT):
        of_rows, of_outputs = is_row[:, None], is_output[:, None]
        if not IS_WHOLE:
            is_input = (first + at < num_inputs)[None, :]
            of_rows, of_outputs = of_rows & is_input, of_outputs & is_input
        rows = tl.trans(tl.load(from_row + first, of_rows, 0.0))
        weights = _weights(weight, from_output, first_output, first, of_outputs, HAS_DESCRIPTOR)
        total = tl.dot(weights, rows, total, input_precision=PRECISION)
        if GATES:
            of_value = num_outputs + first_output
            weights = _weights(weight, from_value, of_value, first, of_outputs, HAS_DESCRIPTOR)
            values = tl.dot(weights, rows, values, input_precision=PRECISION)
    kind: tl.constexpr = outputs.dtype.element_ty
    to = row.to(tl.int64)[None, :] * num_outputs + output[:, None]
    is_there = is_row[None, :] & is_output[:, None]
    if GATES:
        gates = total.to(kind).to(tl.float32)
        found = gated(gates, values.to(kind).to(tl.float32)).to(kind)
    else:
        found = finished(
            total,
            bias + output[:, None],
            added + to,
            is_output[:, None],
            is_there,
            kind,
            HAS_BIAS,
            ADDS,
        )
    tl.store(outputs + to, found, is_there)
