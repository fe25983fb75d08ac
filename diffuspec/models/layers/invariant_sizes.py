"""Matrix products on a GPU whose rows are bitwise independent of the number of rows.

cuBLAS chooses a kernel, and so the order of summation, by the number of rows. Trials find the
numbers of rows that agree in every bit on this machine, and only those are used.
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

# Numbers of rows to try; 64 rows take as long as reading the weights.
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
_MIN_TRIED = 256  # enough outputs to tell kernels apart; narrow layers are tried with several rows
_MAX_TRIED = 1 << 27  # outputs in one trial: wide layers are tried with fewer rows
_MAX_SMALLEST = 256  # 256 rows take hardly longer than one
_STEP = 64
_MAX_PADDING = 128  # rows added to a piece rather than starting another one


def gpu_size(count: int) -> int:
    """Return the smallest sum of SIZES that is at least `count`."""
    return -(-count // _STEP) * _STEP if count > _STEP else _next(count, SIZES)


def multiply_in_sizes(product: Product, inputs: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Multiply rows, [..., inputs], in pieces padded to the given ascending sizes."""
    rows = inputs.flatten(0, -2)
    if len(rows) in sizes:
        return product(inputs)
    outputs = []
    for piece in torch.split(rows, _pieces(len(rows), sizes)):
        num_padding = _next(len(piece), sizes) - len(piece)
        padded = pad(piece, (0, 0, 0, num_padding)) if num_padding else piece
        outputs.append(product(padded)[: len(piece)])
    return torch.cat(outputs).view(*inputs.shape[:-1], -1)


def _pieces(count: int, sizes: tuple[int, ...]) -> list[int]:
    """Return numbers of rows that add up to `count`; each is a size or slightly less."""
    pieces = []
    while count > 0:
        size = min(count, sizes[-1])
        if size > sizes[0] and _next(size, sizes) - size > _MAX_PADDING:
            size = sizes[bisect.bisect_right(sizes, size) - 1]
        pieces.append(size)
        count -= size
    return pieces


def _next(count: int, sizes: tuple[int, ...]) -> int:
    return sizes[bisect.bisect_left(sizes, count)]


@functools.cache
@torch.inference_mode()
def agreeing_sizes(
    make_product: Callable[[Tensor], Product],
    num_inputs: int,
    num_outputs: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[int, ...] | None:
    """Return the SIZES at which products of this shape agree in every bit; None if too few do.

    Of several such groups it is the one that processes the longest prompts at once, among those for
    short steps.
    """
    rows, weight = (
        x.to(device) for x in _cancelling_rows_and_weight(num_inputs, num_outputs, dtype)
    )
    product = make_product(weight)
    groups: dict[bytes, list[int]] = {}
    for size in SIZES:
        if size > SIZES[0] and size * num_outputs > _MAX_TRIED:
            break
        trials = [product(row.expand(size, -1).contiguous()) for row in rows]
        if all(bool((trial == trial[0]).all()) for trial in trials):
            bits = torch.stack([trial[0] for trial in trials]).float().cpu().numpy().tobytes()
            groups.setdefault(bits, []).append(size)
    short = [tuple(sizes) for sizes in groups.values() if sizes[0] <= _MAX_SMALLEST]
    return max(short, key=lambda sizes: (sizes[-1], -sizes[0]), default=None)


def _cancelling_rows_and_weight(
    num_inputs: int, num_outputs: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return rows, [trials, 1, inputs], and weights whose exact products are 0.

    A kernel's result is then pure rounding error, which reveals the order of summation: magnitudes
    differ so much that most additions round.
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
