"""The rows of one sequence that a forward computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from diffuspec.models.pages.table import PageTable

Visible: TypeAlias = Literal["causal", "full"] | int | NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The n new rows of one sequence, which are written to the table's rows from `start` on.

    Each row sees all rows before `start`. `visible` says which new rows see each other:
    - "causal": themselves and the rows before them;
    - "full": all n rows;
    - a number m: the first m rows are causal, the rest see all n rows;
    - a matrix [n, m]: row i sees column j of the last m columns where visible[i, j]; m is n, or
      more to hide rows before `start`, in a model without windows.
    Positions must be consecutive unless `visible` is a matrix. Segments run in order: a segment may
    see rows that an earlier one of the same forward has written to its table.

    num_after: number of cached rows after the new ones that each of these sees too. It may only be
    above 0 if `visible` is "full".
    """

    table: PageTable
    start: int
    token_ids: NDArray[np.integer]  # [n]
    positions: NDArray[np.integer]  # [n]
    visible: Visible
    logit_rows: Sequence[int] | NDArray[np.integer]  # rows whose logits are returned, in this order
    num_after: int = 0

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def end(self) -> int:
        return self.start + self.num_rows

    @property
    def seen_end(self) -> int:
        """End of the cached rows that new rows see."""
        return self.end + self.num_after

    @property
    def num_causal(self) -> int:
        """Number of leading rows that do not see later rows; undefined for a matrix."""
        if self.visible == "causal":
            return self.num_rows
        assert isinstance(self.visible, (str, int)), "a matrix has no number of causal rows"
        return self.visible if isinstance(self.visible, int) else 0

    @property
    def num_chained(self) -> int:
        """Number of leading rows that form a chain seen by every later row."""
        if not isinstance(self.visible, np.ndarray):
            return self.num_causal
        num_rows, num_columns = self.visible.shape
        if num_rows != num_columns:
            return 0
        is_chained = (self.visible == np.tri(num_rows, dtype=np.bool_)).all(axis=1)
        count = num_rows if is_chained.all() else int(is_chained.argmin())
        return count if self.visible[count:, :count].all() else 0
