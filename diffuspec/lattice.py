"""From the drafter's logits to the pruned candidate lattice.

Knows nothing of prefixes, models or the proxy. Logits may have been shaped and given the target's
sampling noise before (diffuspec.sampling): only their softmax matters here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diffuspec.types import Lattice

_FLOAT_MARGIN = 1e-6  # a float32 sum of probabilities that should be tau may fall short by this


@dataclass(frozen=True, slots=True, eq=False)
class Pruning:
    """How columns of the lattice are cut.

    ban is added to the logits: -inf for ids that must never be drafted (those the target does not
    know, the mask token) and 0 for the others, [vocab_size] float32 on the logits' device; see
    ban_ids. None: every id may be drafted.
    """

    candidate_mass: float  # tau of Eq. 7
    max_candidates: int  # M_max of Eq. 7
    eos_token_ids: tuple[int, ...]
    ban: Tensor | None = None


def ban_ids(vocab_size: int, num_known_ids: int, others: Sequence[int] = ()) -> Tensor:
    """Return the ban on the ids from num_known_ids on and on the others."""
    ban = torch.zeros(vocab_size)
    ban[num_known_ids:] = -torch.inf
    ban[list(others)] = -torch.inf
    return ban


def build_lattice(logits: Tensor, pruning: Pruning) -> Lattice:
    """Build the lattice of one request from its draft positions' logits [k, V]."""
    return build_lattices(logits, [len(logits)], pruning)[0]


def build_lattices(
    logits: Tensor,
    lengths: Sequence[int],
    pruning: Pruning,
    keeps_runners_up: Sequence[bool] | None = None,
) -> list[Lattice]:
    """Build one lattice per request from all their logits, [sum of lengths, V], in order.

    Log-probabilities are normalised over the full vocabulary, less the banned ids. A column keeps
    the fewest candidates whose mass reaches tau, M_max at most (Eq. 7). The first column whose
    most probable token is EOS is the last one and holds EOS tokens alone (no EOS is forced into
    the others: paths that end early would win, having fewer terms to their sum). A request that
    wants alternatives keeps what Eq. 7 drops of M_max as runners-up.
    """
    assert len(logits) == sum(lengths), "one row of logits per draft position"
    keeps_all = keeps_runners_up or [False] * len(lengths)
    token_ids, logprobs = _top_candidates(logits, pruning)
    num_candidates = _num_candidates(logprobs, pruning.candidate_mass)
    eos, lattices, start = pruning.eos_token_ids, [], 0
    for length, keeps in zip(lengths, keeps_all, strict=True):
        rows = slice(start, start + length)
        start += length
        lattices.append(
            _cut_at_eos(token_ids[rows], logprobs[rows], num_candidates[rows], eos, keeps)
        )
    return lattices


def _top_candidates(
    logits: Tensor, pruning: Pruning
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the M_max most probable ids of each row and their logprobs, [N, M_max] each."""
    logits = logits.float()
    if pruning.ban is not None:
        logits = logits + pruning.ban
    width = min(pruning.max_candidates, logits.shape[-1])
    logprobs, ids = logits.log_softmax(dim=-1).topk(width, dim=-1)
    # Ids travel as the bits of floats, so that a GPU is read once.
    packed = torch.cat([logprobs, ids.int().view(torch.float32)], dim=-1).cpu().numpy()
    return packed[:, width:].view(np.int32), packed[:, :width]


def _num_candidates(logprobs: NDArray[np.float32], candidate_mass: float) -> NDArray[np.int32]:
    """Apply Eq. 7: M_i = min{m <= M_max : mass of the top m >= tau}, or M_max. At least 1."""
    probabilities = np.exp(logprobs)
    mass = np.cumsum(probabilities, axis=1)
    count = 1 + (mass[:, :-1] < candidate_mass - _FLOAT_MARGIN).sum(axis=1)
    possible = np.count_nonzero(probabilities, axis=1)  # fewer than M_max where ids are banned
    num_candidates: NDArray[np.int32] = np.clip(count, 1, np.maximum(possible, 1)).astype(np.int32)
    return num_candidates


def _cut_at_eos(
    token_ids: NDArray[np.int32],
    logprobs: NDArray[np.float32],
    num_candidates: NDArray[np.int32],
    eos_token_ids: tuple[int, ...],
    keeps_runners_up: bool,
) -> Lattice:
    """Drop the columns after the first whose most probable token is EOS; blank unused cells."""
    length, width = token_ids.shape
    stops = np.flatnonzero((token_ids[:, :1] == np.array(eos_token_ids, np.int32)).any(axis=1))
    stop = int(stops[0]) if len(stops) else length
    columns = slice(0, stop + 1)
    num_candidates = num_candidates[columns].copy()
    token_ids, logprobs = token_ids[columns].copy(), logprobs[columns].copy()
    if stop < length:
        # Every EOS token of this column, whatever tau says, and nothing else as a candidate.
        is_eos = np.isin(token_ids[stop], eos_token_ids) & np.isfinite(logprobs[stop])
        num_candidates[stop] = int(is_eos.sum())
        eos_first = np.argsort(~is_eos, kind="stable")
        token_ids[stop], logprobs[stop] = token_ids[stop, eos_first], logprobs[stop, eos_first]
    unused = np.arange(width) >= num_candidates[:, None]
    if keeps_runners_up:
        unused &= ~np.isfinite(logprobs)
    token_ids[unused] = -1
    logprobs[unused] = -np.inf
    return Lattice(token_ids, logprobs, num_candidates, num_tokens_before_eos=stop)
