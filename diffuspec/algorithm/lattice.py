"""The pruned candidate lattice, built from the drafter's log-probabilities.

They may already include the target's sampling noise (`diffuspec.algorithm.sampling`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diffuspec.core.types import Lattice

_FLOAT_MARGIN = 1e-6  # tolerance for a float32 sum of probabilities that should be tau

EMPTY_LATTICE = Lattice(
    np.empty((0, 1), np.int32), np.empty((0, 1), np.float32), np.empty(0, np.int32), 0
)


@dataclass(frozen=True, slots=True)
class Pruning:
    """Parameters of pruning the lattice's columns."""

    candidate_mass: float  # tau of Eq. 7
    max_candidates: int  # M_max of Eq. 7
    eos_token_ids: tuple[int, ...]


def build_lattices(
    token_ids: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    lengths: Sequence[int],
    pruning: Pruning,
    keeps_runners_up: Sequence[bool],
) -> list[Lattice]:
    """Build one lattice per request from the most probable ids of all positions, in order.

    token_ids and logprobs [sum of lengths, M_max], most probable first; both are written to.

    Log-probabilities are normalised over the full vocabulary; ids of probability 0 are never
    candidates. A column keeps the fewest candidates whose mass reaches tau, at most M_max (Eq. 7).
    The first column whose most probable token is EOS is the last one, and holds EOS tokens only.
    (EOS is not forced into other columns: paths that end early would win because their sum has
    fewer terms.) keeps_runners_up: for each request, whether tokens of the top M_max that Eq. 7
    drops are kept as runners-up. Raises ValueError for log-probabilities that are NaN.

    The code is plain Python on short lists: right after a forward, the array library's code is no
    longer in the processor's caches, and every call into it costs more.
    """
    assert len(logprobs) == sum(lengths), "one row of log-probabilities per draft position"
    sizes = [_num_candidates(row, pruning.candidate_mass) for row in logprobs.tolist()]
    lattices, start = [], 0
    for length, keeps in zip(lengths, keeps_runners_up, strict=True):
        rows = slice(start, start + length)
        start += length
        table = token_ids[rows], logprobs[rows], sizes[rows]
        lattices.append(_cut_at_eos(*table, pruning.eos_token_ids, keeps))
    return lattices


def _num_candidates(logprobs: list[float], candidate_mass: float) -> int:
    """Apply Eq. 7: M_i = min{m <= M_max : mass of the top m >= tau}, or M_max. At least 1."""
    if math.isnan(logprobs[0]):
        raise ValueError("the logits are not finite")
    mass = 0.0
    for index, logprob in enumerate(logprobs):
        if logprob == -math.inf:  # banned ids may leave fewer than M_max
            return max(index, 1)
        mass += math.exp(logprob)
        if mass >= candidate_mass - _FLOAT_MARGIN:
            return index + 1
    return len(logprobs)


def _cut_at_eos(
    token_ids: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    sizes: list[int],
    eos_token_ids: tuple[int, ...],
    keeps_runners_up: bool,
) -> Lattice:
    """Drop the columns after the first whose most probable token is EOS, and clear unused cells.

    Modifies its arguments.
    """
    first_ids = token_ids[:, 0].tolist()
    stop = next((i for i, first in enumerate(first_ids) if first in eos_token_ids), len(sizes))
    if stop < len(sizes):
        token_ids, logprobs, sizes = token_ids[: stop + 1], logprobs[: stop + 1], sizes[: stop + 1]
        # The candidates of this column are its EOS tokens, whatever their mass.
        sizes[stop] = _put_first(token_ids[stop], logprobs[stop], eos_token_ids)
    num_candidates = np.array(sizes, np.int32)
    if keeps_runners_up:
        token_ids[np.isneginf(logprobs)] = -1
    else:
        unused = np.arange(token_ids.shape[1]) >= num_candidates[:, None]
        token_ids[unused], logprobs[unused] = -1, -np.inf
    return Lattice(token_ids, logprobs, num_candidates, num_tokens_before_eos=stop)


def _put_first(
    token_ids: NDArray[np.int32], logprobs: NDArray[np.float32], chosen: tuple[int, ...]
) -> int:
    """Move the ids in `chosen` to the front of a column, in place; return their number."""
    pairs = list(zip(token_ids.tolist(), logprobs.tolist(), strict=True))
    first = [pair for pair in pairs if pair[0] in chosen and pair[1] > -math.inf]
    rest = [pair for pair in pairs if pair not in first]
    token_ids[:], logprobs[:] = zip(*first, *rest, strict=True)
    return len(first)
