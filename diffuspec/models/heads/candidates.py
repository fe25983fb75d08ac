"""The likeliest tokens by a head's logits, for the request as it samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

import torch

from diffuspec.algorithm.sampling import perturb_logits
from diffuspec.algorithm.shaping import History
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import DraftRequest
from diffuspec.models.kernels.largest import most_probable

Candidates: TypeAlias = list[tuple[int, float]]  # token ids, ln P(right); likeliest first


class Place(NamedTuple):
    """Where a row's token would stand."""

    request: DraftRequest
    position: int  # absolute index of the token
    path: Sequence[int]  # tokens drafted before it, as far as the head knows them


def likeliest_after(
    logits: torch.Tensor, places: Sequence[Place], target: TargetInfo, count: int
) -> list[Candidates]:
    """Return each row's likeliest tokens, with the request's own sampling noise.

    There are `count` of them, or fewer where top-k and top-p leave fewer. logits [R, V] are in the
    order of the places; those of one request stand together.
    """
    logits = logits.float()
    logits[:, target.vocab_size :] = -torch.inf
    rows = torch.cat(list(_perturbed(logits, places, target)))
    ids, values = most_probable(rows, count)
    return [
        [pair for pair in zip(row_ids, row, strict=True) if pair[1] > -torch.inf]
        for row_ids, row in zip(ids.tolist(), values.tolist(), strict=True)
    ]


def _perturbed(
    logits: torch.Tensor, places: Iterable[Place], target: TargetInfo
) -> Iterable[torch.Tensor]:
    first = 0
    for _, group in groupby(places, key=lambda place: id(place.request)):
        mine = list(group)
        request, positions = mine[0].request, [place.position for place in mine]
        paths = [place.path for place in mine]
        history = History(request.prefix, request.num_prompt_tokens, paths)
        rows = logits[first : first + len(mine)]
        first += len(mine)
        yield perturb_logits(rows, request.sampling, positions, history, target.eos_token_ids)
