"""Exchanges of the default process group, in forwards and while a model is loaded.

All ranks get bitwise identical results, and a row's bits do not depend on the other rows. An
all_reduce would not do: a ring adds the shares of each block of a tensor in another order.

Every rank makes the same calls in the same order, with tensors of the same shapes. Calls raise
VerifierUnavailableError if another rank is lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from diffuspec.core.errors import VerifierUnavailableError

Agree: TypeAlias = Callable[[bool], bool]
"""Returns whether all ranks of a model pass True; `bool` for a model in one process."""

# From between 2 and 8 MB on, two collectives are faster than one (gloo over loopback, 4 ranks).
_MAX_WHOLE_BYTES = 4 << 20


def sum_of_ranks(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum of the ranks' parts, [..., H]: added in float32, rounded to dtype once.

    Ranks receive all parts whole if these are small. Otherwise each rank receives, adds and rounds
    its share of the columns, and the sums are gathered; two ranks would save a quarter at most.
    """
    num_ranks, width = dist.get_world_size(), part.shape[-1]
    is_small = num_ranks * part.numel() * part.itemsize <= _MAX_WHOLE_BYTES
    if is_small or num_ranks == 2 or width % num_ranks:
        return _add(_gather(part), dtype)
    columns = torch.stack(part.chunk(num_ranks, dim=-1))
    received = torch.empty_like(columns)
    with _peers():
        dist.all_to_all_single(received, columns)
    return join_columns(_add(received.unbind(), dtype))


def join_columns(share: Tensor) -> Tensor:
    """Return the ranks' columns, [..., share], side by side, [..., ranks * share]."""
    return torch.cat(_gather(share.contiguous()), dim=-1)


def collect_rows(rows: Tensor) -> Tensor:
    """Return, in place, each row of the one rank that has it; the others pass zeros."""
    with _peers():
        dist.all_reduce(rows)  # exact in any order
    return rows


def all_ranks(is_true: bool, device: torch.device) -> bool:
    """Return whether all ranks pass True. `device`: that of the model."""
    return bool(least_of_ranks(is_true, device))


def least_of_ranks(number: int, device: torch.device) -> int:
    """Return the smallest number that a rank passes."""
    least = torch.tensor(number, dtype=torch.int32, device=device)
    with _peers():
        dist.all_reduce(least, dist.ReduceOp.MIN)
    return int(least)


def all_equal(value: int, device: torch.device) -> bool:
    """Return whether all ranks pass the same signed 64-bit integer. `device`: as for all_ranks."""
    bounds = torch.tensor([value, ~value], device=device)  # ~ reverses the order
    with _peers():
        dist.all_reduce(bounds, dist.ReduceOp.MIN)
    least, inverted_most = bounds.tolist()
    return bool(least == ~inverted_most)


def _add(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(dtype)


def _gather(tensor: Tensor) -> list[Tensor]:
    """Return all ranks' tensors, in the order of ranks."""
    gathered = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    with _peers():
        dist.all_gather(gathered, tensor)
    return gathered


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    try:
        yield
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise  # failures of this rank's own device, which CUDA graphs catch
    except RuntimeError as error:
        reason = next(iter(str(error).splitlines()), repr(error))
        raise VerifierUnavailableError(
            f"rank {dist.get_rank()} lost another rank: {reason}"
        ) from error
