"""The Triton kernel of products with weights in 16 or 32 bits.

The weights are the first operand, so that tiles of any number of rows use one instruction. A row's
sums add the inputs in ascending order, and no program depends on another.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    inputs,
    weight,
    bias,
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
    PRECISION: tl.constexpr,
):
    """Write the products of a tile of rows with the weights of some outputs, plus their bias.

    Programs that need the same weights are neighbours. The product is rounded before the bias is
    added. With HAS_DESCRIPTOR, `weight` is a descriptor of blocks [OUTPUTS, UNIT]. With IS_WHOLE,
    no unit extends beyond the inputs.
    """
    num_tiles = tl.cdiv(num_rows, ROWS)
    first_output = tl.program_id(0) // num_tiles * OUTPUTS
    row = tl.program_id(0) % num_tiles * ROWS + tl.arange(0, ROWS)
    output, at = first_output + tl.arange(0, OUTPUTS), tl.arange(0, UNIT)
    is_row, is_output = row < num_rows, output < num_outputs
    from_row = inputs + row.to(tl.int64)[:, None] * num_inputs + at[None, :]
    if not HAS_DESCRIPTOR:
        from_output = weight + output.to(tl.int64)[:, None] * num_inputs + at[None, :]
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for first in range(0, num_inputs, UNIT):
        is_input = first + at < num_inputs
        if HAS_DESCRIPTOR:
            weights = weight.load([first_output, first])
        elif IS_WHOLE:
            weights = tl.load(from_output + first, is_output[:, None], 0.0)
        else:
            weights = tl.load(from_output + first, is_output[:, None] & is_input[None, :], 0.0)
        if IS_WHOLE:
            rows = tl.load(from_row + first, is_row[:, None], 0.0)
        else:
            rows = tl.load(from_row + first, is_row[:, None] & is_input[None, :], 0.0)
        total = tl.dot(weights, tl.trans(rows), total, input_precision=PRECISION)
    found = total.to(outputs.dtype.element_ty)
    if HAS_BIAS:
        biases = tl.load(bias + output, is_output, 0.0).to(tl.float32)
        found = (found.to(tl.float32) + biases[:, None]).to(outputs.dtype.element_ty)
    to = row.to(tl.int64)[None, :] * num_outputs + output[:, None]
    tl.store(outputs + to, found, is_row[None, :] & is_output[:, None])
