"""The target's hidden states as messages between a verifier and a drafter in another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class StatesWanted:
    """Hidden states that a drafter in another process lacks."""

    layers: tuple[int, ...]  # layers of the target, counted from 0
    first: int  # index of the first prefix token without states


@dataclass(frozen=True, slots=True, eq=False)
class StateRows:
    """Hidden states of successive prefix tokens, in the form in which they are sent."""

    MAX_BYTES: ClassVar[int] = 1 << 23  # most bytes in one message, over all requests

    first: int  # index of the prefix token of the first row
    dims: tuple[int, int]  # number of rows, and of columns: the layers' states side by side
    data: bytes  # bfloat16, little-endian, row after row

    @property
    def end(self) -> int:
        return self.first + self.dims[0]

    def cut(self, max_bytes: int) -> tuple[StateRows, StateRows]:
        """Return the first rows that fit (at least one), and the remaining ones."""
        rows, columns = self.dims
        row_bytes = len(self.data) // max(1, rows)
        head = max(1, min(rows, max_bytes // max(1, row_bytes)))
        here, rest = self.data[: head * row_bytes], self.data[head * row_bytes :]
        tail = StateRows(self.first + head, (rows - head, columns), rest)
        return StateRows(self.first, (head, columns), here), tail


def joined_states(parts: Sequence[StateRows]) -> StateRows | None:
    """Return the rows of successive parts; None if there are no parts."""
    if len(parts) < 2:
        return parts[0] if parts else None
    dims = parts[-1].end - parts[0].first, parts[0].dims[1]
    return StateRows(parts[0].first, dims, b"".join(one.data for one in parts))
