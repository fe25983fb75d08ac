"""The key-value cache: a table of pages for each request, and prefixes kept for later ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from diffuspec.core.pages import PAGE_SIZE, PageUse, num_pages_of
from diffuspec.core.types import TokenIds, num_shared_tokens
from diffuspec.models.pages.pool import OutOfPagesError, PagePool
from diffuspec.models.pages.store import CacheShape, PageStore
from diffuspec.models.pages.table import PageTable

# Above this number of uncached tokens, an extra forward or a search for rows is worthwhile.
MANY_TOKENS = 32


class KVCache:
    """The tables of requests over one store. Not thread-safe: its owner calls it from one thread.

    Whole committed pages never change and are shared by all requests with their prefix and salt.
    When a request ends, its pages are kept as long as no other request needs them. If all pages are
    in use, the youngest request that is not part of the step loses its pages, and its tokens are
    read again when it is acquired the next time; without `preempts`, the step has to go without.

    Where rows depend on later tokens, shares_prefixes must be off: pages are then private, may be
    overwritten, and are free when a request ends. With a window, a row sees only that many rows,
    itself included: pages that no later row will see are given back, and no page is shared.
    """

    def __init__(
        self,
        shape: CacheShape,
        num_pages: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        *,
        transposes_keys: bool = False,
        shares_prefixes: bool = True,
        preempts: bool = True,
        window: int | None = None,
    ) -> None:
        self.store = PageStore(shape, num_pages, dtype, device, transposes_keys)
        self._shares_prefixes = shares_prefixes and window is None
        self._preempts, self._window = preempts, window
        self._pool = PagePool(num_pages)
        self._tables: dict[str, PageTable] = {}
        self._spoilt = set[int]()  # pages to be zeroed when they are free
        self._step = 0

    @property
    def num_pages(self) -> int:
        return self._pool.num_pages

    @property
    def use(self) -> PageUse:
        return PageUse(self._pool.num_free, self._pool.num_shared)

    def num_cached(self, request_id: str) -> int:
        """Return the number of a request's leading tokens that its table holds."""
        table = self._tables.get(request_id)
        return 0 if table is None else table.length

    def begin_step(self) -> None:
        """Begin a step: tables acquired from now on keep their pages until the next step."""
        self._step += 1

    def acquire(
        self,
        request_id: str,
        prefix: TokenIds,
        max_cached: int | None = None,
        salt: str | None = None,
    ) -> PageTable:
        """Return the request's table. Its length is the number of leading prefix tokens cached.

        At most max_cached tokens count as cached: by default all but the last, whose row is needed
        for its logits. Whole pages that another request left or uses are shared, and the rows of a
        partial one are copied, or taken over if nothing else uses them.
        """
        prefix = prefix.astype(np.int32, copy=False)
        limit = max(len(prefix) - 1, 0) if max_cached is None else max_cached
        table = self._tables.get(request_id)
        if table is None or table.salt != salt:
            self._close(request_id)
            table = PageTable(request_id, salt, self._pool.root(salt))
            self._tables[request_id] = table
        table.last_step = self._step
        is_new = not table.length
        self.truncate(table, min(num_shared_tokens(table.token_ids, prefix), limit))
        if self._shares_prefixes and (is_new or len(prefix) - table.length > MANY_TOKENS):
            self._share_whole_pages(table, prefix[:limit])
            self._copy_partial_page(table, prefix[:limit])
        return table

    def find(self, request_id: str) -> PageTable | None:
        """Return the table of a request that has pages."""
        return self._tables.get(request_id)

    def reserve(self, table: PageTable, end: int) -> None:
        """Let a forward write the table's rows before `end`. Raises OutOfPagesError."""
        num_missing = num_pages_of(end) - len(table.pages)
        if num_missing <= 0:
            return
        taken: list[int] = []
        try:
            for _ in range(num_missing):
                taken.append(self._take())
        except OutOfPagesError:
            for page in taken:
                self._pool.drop(page)
            raise
        table.pages = np.append(table.pages, np.array(taken, np.int32))

    def commit(
        self,
        table: PageTable,
        token_ids: Sequence[int] | TokenIds,
        num_in_place: int,
        moved_rows: Sequence[int] = (),
    ) -> None:
        """Keep rows that the last forward wrote after the table's length; give back other pages.

        Rows are counted from that length. The first num_in_place stay where they are; moved_rows
        (ascending) are moved after them. token_ids are the tokens of both, in that order.
        """
        start, moved = table.length, list(moved_rows)
        while moved and moved[0] == num_in_place:  # in a chain these rows are already in place
            num_in_place += 1
            del moved[0]
        if moved:
            rows = [start + row for row in moved]
            self.store.move(table.pages, rows, start + num_in_place)
        table.token_ids = np.concatenate([table.token_ids, token_ids], dtype=np.int32)
        self._publish_whole_pages(table)
        self._keep_pages(table, num_pages_of(table.length))
        self._drop_unseen_pages(table)

    def truncate(self, table: PageTable, length: int) -> None:
        """Shorten a table to at most `length` rows.

        A page that is then partial becomes the table's own: others may use its old rows. If pages
        that its next row would see have been given back, nothing is left.
        """
        if length >= table.length:
            return
        if self._num_unseen_pages(length) < table.num_dropped:
            length = 0
        num_whole = length // PAGE_SIZE
        self._keep_pages(table, num_pages_of(length))
        table.token_ids = table.token_ids[:length]
        if length % PAGE_SIZE and num_whole < len(table.nodes):
            self._make_private(table, num_whole)
        del table.nodes[num_whole:]

    def release(self, request_id: str) -> None:
        """End a request; its rows are kept until other requests need their pages."""
        self._close(request_id)

    def clear(self, request_id: str) -> None:
        """End a request, and zero its rows, which may hold NaNs."""
        table = self._tables.pop(request_id, None)
        if table is not None:
            for page in table.pages.tolist():
                self._pool.withdraw(page)
                self._spoilt.add(page)
            self._keep_pages(table, 0)

    def reset(self) -> None:
        """Forget all requests and prefixes."""
        self._pool = PagePool(self.num_pages)
        self._tables.clear()

    def _share_whole_pages(self, table: PageTable, token_ids: TokenIds) -> None:
        """Continue a table with pages of other requests that hold the next tokens."""
        num_nodes = len(table.nodes)
        nodes = list(self._pool.whole_pages(table.node, token_ids[num_nodes * PAGE_SIZE :]))
        num_whole = num_nodes + len(nodes)
        if num_whole * PAGE_SIZE <= table.length:
            return
        shared = [node.page for node in nodes]
        for page in shared:
            self._pool.use(page)
        self._keep_pages(table, num_nodes)
        table.pages = np.append(table.pages, np.array(shared, np.int32))
        table.nodes += nodes
        table.token_ids = token_ids[: num_whole * PAGE_SIZE].copy()

    def _copy_partial_page(self, table: PageTable, token_ids: TokenIds) -> None:
        """Continue a table with the rows of a page that begins with the next tokens."""
        first, num_own = len(table.nodes) * PAGE_SIZE, len(table.tail)
        wanted = token_ids[first : first + PAGE_SIZE]
        node, count = self._pool.longest(table.node, wanted)
        source = -1 if node is None else node.page
        for other in self._tables.values():
            if other.node is table.node and other is not table:
                num_shared = num_shared_tokens(other.tail[:PAGE_SIZE], wanted)
                if num_shared > count:
                    node, count, source = None, num_shared, int(other.pages[first // PAGE_SIZE])
        if count <= (num_own and num_own + MANY_TOKENS):
            return
        taken = None
        if node is not None and len(node.token_ids) == count < PAGE_SIZE:
            taken = self._pool.take_over(node)
        if taken is None and (taken := self._copied_page(source)) is None:
            return
        self._keep_pages(table, first // PAGE_SIZE)
        table.pages = np.append(table.pages, np.int32(taken))
        table.token_ids = token_ids[: first + count].copy()

    def _copied_page(self, source: int) -> int | None:
        """Return a private copy of a page; None if no page is free without it."""
        if self._pool.num_free <= self._pool.is_idle(source):
            return None
        self._pool.use(source)
        taken = self._pool.take()
        self.store.copy_page(source, taken)
        self._pool.drop(source)
        return taken

    def _make_private(self, table: PageTable, index: int) -> None:
        """Replace a published page of a table by a copy; without a free page, drop its rows."""
        source = int(table.pages[index])
        if not self._pool.is_published(source):
            return
        taken = self._copied_page(source)
        if taken is None:
            self._keep_pages(table, index)
            table.token_ids = table.token_ids[: index * PAGE_SIZE]
            return
        self._pool.drop(source)
        table.pages = table.pages.copy()
        table.pages[index] = taken

    def _publish_whole_pages(self, table: PageTable) -> None:
        if not self._shares_prefixes:
            return
        for index in range(len(table.nodes), table.length // PAGE_SIZE):
            token_ids = table.token_ids[index * PAGE_SIZE : (index + 1) * PAGE_SIZE]
            page = int(table.pages[index])
            table.nodes.append(self._pool.publish(table.node, token_ids, page))

    def _num_unseen_pages(self, length: int) -> int:
        """Return how many pages no row will see from row `length` on."""
        return 0 if self._window is None else max(length + 1 - self._window, 0) // PAGE_SIZE

    def _drop_unseen_pages(self, table: PageTable) -> None:
        """Give back pages that windows hide; others of the table stand in for them."""
        count = min(self._num_unseen_pages(table.length), len(table.pages) - 1)
        if count > table.num_dropped:
            kept = table.pages[count:]
            dropped = replace(table, pages=table.pages[:count])
            self._keep_pages(dropped, 0)
            table.pages = np.concatenate([np.full(count, kept[0]), kept], dtype=np.int32)
            table.num_dropped = count

    def _keep_pages(self, table: PageTable, count: int) -> None:
        """Drop the pages of a table after the first `count`, the last one first."""
        first = max(count, table.num_dropped)
        table.num_dropped = min(count, table.num_dropped)
        for page in table.pages[first:].tolist()[::-1]:
            if self._pool.drop(page) and page in self._spoilt:
                self._spoilt.remove(page)
                self.store.zero_page(page)
        table.pages = table.pages[:count]

    def _close(self, request_id: str) -> None:
        """Drop the pages of a request; those with committed rows are kept for later requests."""
        table = self._tables.pop(request_id, None)
        if table is None:
            return
        self._keep_pages(table, num_pages_of(table.length))
        if self._shares_prefixes and len(table.tail):
            self._pool.publish(table.node, table.tail, int(table.pages[-1]))
        self._keep_pages(table, 0)

    def _take(self) -> int:
        """Return a page, if need be that of the youngest request outside the step."""
        while self._preempts and not self._pool.num_free:
            idle = [
                table.request_id
                for table in self._tables.values()
                if table.last_step != self._step and len(table.pages)
            ]
            if not idle:
                break
            self._close(idle[-1])
        return self._pool.take()
