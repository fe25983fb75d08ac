"""Matrix products on a CPU whose rows do not depend on how many there are, to the last bit.

oneDNN chooses a kernel, and with it the order of a sum, by the number of rows. Here it is found out
by experiment which numbers of rows agree on this machine, and only those are used.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

Product: TypeAlias = Callable[[Tensor], Tensor]

# Numbers of rows that are tried.
SIZES = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)
MIN_LARGEST = 16  # drafts of this many tokens are verified at once
_MIN_TRIED = 256  # outputs that tell kernels apart; narrow layers are tried with several rows
_MAX_TRIED = 1 << 22  # outputs of one trial: wide layers are tried with fewer rows


def invariant_size(count: int) -> int:
    """Return the next number of rows at or above a count that pieces of SIZES add up to."""
    whole, rest = divmod(count, SIZES[-1])
    return whole * SIZES[-1] + (_next(rest, SIZES) if rest else 0)


def multiply_in_sizes(product: Product, inputs: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Multiply rows, [..., inputs], in pieces padded to the given ascending sizes."""
    rows = inputs.flatten(0, -2)
    if len(rows) in sizes:
        return product(inputs)
    outputs, pieces = [], torch.split(rows, sizes[-1])
    for piece in pieces:
        num_padding = _next(len(piece), sizes) - len(piece)
        padded = pad(piece, (0, 0, 0, num_padding)) if num_padding else piece
        outputs.append(product(padded)[: len(piece)])
    return torch.cat(outputs).view(*inputs.shape[:-1], -1)


def _next(count: int, sizes: tuple[int, ...]) -> int:
    return sizes[bisect.bisect_left(sizes, count)]


def agreeing_sizes(
    make_product: Callable[[Tensor, Tensor | None], Product],
    num_inputs: int,
    num_outputs: int,
    has_bias: bool,
    dtype: torch.dtype,
) -> tuple[int, ...] | None:
    """Return the SIZES at which products of this shape agree in every bit; None for too few.

    The result holds for the present number of threads.
    """
    return _agreeing_sizes(
        make_product, num_inputs, num_outputs, has_bias, dtype, torch.get_num_threads()
    )


@functools.cache
@torch.inference_mode()
def _agreeing_sizes(
    make_product: Callable[[Tensor, Tensor | None], Product],
    num_inputs: int,
    num_outputs: int,
    has_bias: bool,
    dtype: torch.dtype,
    _num_threads: int,
) -> tuple[int, ...] | None:
    rows, weight = _cancelling_rows_and_weight(num_inputs, num_outputs, dtype)
    product = make_product(weight, weight.new_zeros(num_outputs) if has_bias else None)
    groups: dict[bytes, list[int]] = {}
    for size in SIZES:
        if size > MIN_LARGEST and size * num_outputs > _MAX_TRIED:
            break
        trials = [product(row.expand(size, -1).contiguous()) for row in rows]
        if all(bool((trial == trial[0]).all()) for trial in trials):
            bits = torch.stack([trial[0] for trial in trials]).float().numpy().tobytes()
            groups.setdefault(bits, []).append(size)
    large = [tuple(sizes) for sizes in groups.values() if sizes[-1] >= MIN_LARGEST]
    return min(large, default=None)


def _cancelling_rows_and_weight(
    num_inputs: int, num_outputs: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return rows, [trials, 1, inputs], and weights whose true products are 0.

    What a kernel returns for them is its rounding errors alone, which tell the order of the sum:
    magnitudes differ so much that most additions round.
    """
    random = torch.Generator().manual_seed(0)
    half, num_trials = num_inputs // 2, -(-_MIN_TRIED // num_outputs)
    order = torch.randperm(half, generator=random)
    rows = torch.zeros(num_trials, 1, num_inputs)
    rows[..., :half] = _numbers((num_trials, 1, half), random)
    rows[..., half : 2 * half] = rows[..., :half][..., order]
    weight = torch.zeros(min(num_outputs, _MIN_TRIED), num_inputs)
    weight[:, :half] = 16 * _numbers((len(weight), half), random)
    weight[:, half : 2 * half] = -weight[:, :half][:, order]
    repeats = -(-num_outputs // len(weight))
    return rows.to(dtype), weight.to(dtype).repeat(repeats, 1)[:num_outputs].contiguous()


def _numbers(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    exponents = torch.randint(-4, 5, shape, generator=random)
    return torch.randn(shape, generator=random).ldexp(exponents)
