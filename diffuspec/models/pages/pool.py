"""Which pages are free, in use, or kept because a prefix may come again.

A kept prefix is a chain of nodes, one for each page, found by the page's tokens after those of the
pages before it. The tokens themselves are compared, so no collision of hashes can matter.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from weakref import WeakValueDictionary

import numpy as np

from diffuspec.core.errors import WorkerError
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.core.types import TokenIds, num_shared_tokens

_MAX_COMPARED = 64  # pages that may follow a prefix, of which the best is looked for


class OutOfPagesError(WorkerError):
    """All pages are in use."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Node:
    """A page of a prefix, after that of its parent. The root of a salt has no page."""

    parent: Node | None = None
    token_ids: TokenIds = field(default_factory=lambda: np.zeros(0, np.int32))
    page: int = -1
    children: dict[bytes, Node] = field(default_factory=dict)  # by their tokens


class PagePool:
    """The pages of a store, by number.

    A page is private to the table that took it until a node publishes it. From then on its rows
    never change, and any number of tables may use it. A published page that no table uses is kept
    until all others are in use; the least recently used one goes first.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._num_uses = [0] * num_pages
        self.num_shared = 0  # pages that several tables use
        self._nodes: dict[int, Node] = {}  # by page
        self._idle = OrderedDict[int, None]()  # published pages without use; the oldest comes first
        self._roots = WeakValueDictionary[str | None, Node]()  # by salt

    @property
    def num_free(self) -> int:
        """Number of pages that can be taken, kept ones included."""
        return len(self._free) + len(self._idle)

    def root(self, salt: str | None) -> Node:
        """Return the node before the first page of every prefix with a salt."""
        root = self._roots.get(salt)
        if root is None:
            self._roots[salt] = root = Node()
        return root

    def take(self) -> int:
        """Return a private page. Raises OutOfPagesError."""
        if not self._free:
            if not self._idle:
                raise OutOfPagesError(f"all {self.num_pages} pages of the cache are in use")
            self.withdraw(next(iter(self._idle)))
        page = self._free.pop()
        self._num_uses[page] = 1
        return page

    def is_published(self, page: int) -> bool:
        return page in self._nodes

    def is_idle(self, page: int) -> bool:
        return page in self._idle

    def use(self, page: int) -> None:
        """Let one more table use a page."""
        self._idle.pop(page, None)
        self._num_uses[page] += 1
        self.num_shared += self._num_uses[page] == 2

    def drop(self, page: int) -> bool:
        """End a table's use of a page. Returns whether the page is free now, and not kept."""
        self._num_uses[page] -= 1
        self.num_shared -= self._num_uses[page] == 1
        if self._num_uses[page]:
            return False
        if page in self._nodes:
            self._idle[page] = None
            return False
        self._free.append(page)
        return True

    def publish(self, parent: Node, token_ids: TokenIds, page: int) -> Node:
        """Return the node of some tokens after a parent: the page's, unless there is one."""
        key = token_ids.tobytes()
        node = parent.children.get(key)
        if node is None:
            parent.children[key] = node = Node(parent, token_ids.copy(), page)
            self._nodes[page] = node
        return node

    def withdraw(self, page: int) -> None:
        """Make a published page private again: no table will find it any more."""
        node = self._nodes.pop(page, None)
        if node is None:
            return
        assert node.parent is not None
        del node.parent.children[node.token_ids.tobytes()]
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)

    def take_over(self, node: Node) -> int | None:
        """Return a kept page as a private one; None if a table uses it."""
        if node.page not in self._idle:
            return None
        self.withdraw(node.page)
        page = self._free.pop()
        self._num_uses[page] = 1
        return page

    def whole_pages(self, node: Node, token_ids: TokenIds) -> Iterator[Node]:
        """Yield the nodes of the whole pages that begin the tokens after a node."""
        for first in range(0, len(token_ids) - PAGE_SIZE + 1, PAGE_SIZE):
            child = node.children.get(token_ids[first : first + PAGE_SIZE].tobytes())
            if child is None:
                return
            yield child
            node = child

    def longest(self, parent: Node, token_ids: TokenIds) -> tuple[Node | None, int]:
        """Return the page after a parent that has most of the next tokens, and their number."""
        best: tuple[Node | None, int] = None, 0
        for node in islice(reversed(parent.children.values()), _MAX_COMPARED):
            count = num_shared_tokens(node.token_ids, token_ids)
            if count > best[1]:
                best = node, count
        return best
