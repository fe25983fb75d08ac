"""PageTable: where the rows of one sequence are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diffuspec.core.pages import PAGE_SIZE
from diffuspec.core.types import TokenIds
from diffuspec.models.pages.pool import Node
from diffuspec.models.pages.store import Pages


@dataclass(slots=True, eq=False)
class PageTable:
    """The pages of one sequence. Rows past `length` are scratch.

    Its whole pages may be shared with other tables; the others are its own.
    """

    request_id: str
    salt: str | None = None  # salt of the request
    root: Node = field(default_factory=Node)
    pages: Pages = field(default_factory=lambda: np.zeros(0, np.int32))
    # committed tokens; row i holds token_ids[i] at position i
    token_ids: TokenIds = field(default_factory=lambda: np.zeros(0, np.int32))
    nodes: list[Node] = field(default_factory=list)  # what the leading whole pages hold
    num_dropped: int = 0  # leading pages that were given back, because windows hide their rows
    last_step: int = -1

    @property
    def length(self) -> int:
        return len(self.token_ids)

    @property
    def node(self) -> Node:
        """The node of the last whole page that has one."""
        return self.nodes[-1] if self.nodes else self.root

    @property
    def tail(self) -> TokenIds:
        """The tokens after the pages that have nodes."""
        return self.token_ids[len(self.nodes) * PAGE_SIZE :]
