"""How a layer turns products of queries and keys into weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class Scoring:
    """The rule of one layer; most families have a scaling alone."""

    scaling: float
    window: int | None = None  # a row at position p sees positions above p - window only
    softcap: float | None = None  # a score s becomes softcap * tanh(s / softcap)
    sinks: torch.Tensor | None = None  # [heads]: score of a column without value, for each head

    @property
    def is_plain(self) -> bool:
        """Whether weights are the softmax of scaled products."""
        return self.softcap is None and self.sinks is None
