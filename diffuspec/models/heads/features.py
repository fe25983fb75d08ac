"""Hidden states of the prefixes that the target has verified, found by their tokens.

A head drafts for a prefix from the states of its tokens. They are kept in pages like those of the
target's cache, as many of them, and the least recently used are dropped first: a prefix that the
target finds in its cache has its states here, whichever request computed them. States of tokens
that were cached before the target was observed are unknown, which costs drafts but changes no
answer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from weakref import WeakValueDictionary

import numpy as np
import torch

from diffuspec.core.interfaces import Observation, TargetInfo
from diffuspec.core.pages import PAGE_SIZE, num_pages_of
from diffuspec.core.types import DraftRequest, TokenIds, num_shared_tokens

_MAX_COMPARED = 64  # pages that may follow a prefix, of which the best is looked for


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Hidden states of successive tokens of a prefix, from token `first` on."""

    first: int
    parts: tuple[torch.Tensor, ...]  # [rows, D] each, at least one row

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def last(self) -> torch.Tensor:
        """The last token's state, [D]."""
        return self.parts[-1][-1]

    def rows(self, start: int, end: int) -> torch.Tensor:
        """Return the states from the `start`-th known one up to the `end`-th, [end - start, D]."""
        found = []
        for part in self.parts:
            if start < len(part) and end > 0:
                found.append(part[max(start, 0) : end])
            start, end = start - len(part), end - len(part)
        return found[0] if len(found) == 1 else torch.cat(found)


def salt_of(request: DraftRequest, features: Features) -> str:
    """Return the salt of a request's rows in a head's cache, where row 0 is not always token 0."""
    return f"{features.first} {request.sampling.cache_salt!r}"


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Page:
    """At most PAGE_SIZE tokens after those of the parent. The root of a salt has none."""

    parent: _Page | None = None
    token_ids: TokenIds = field(default_factory=lambda: np.zeros(0, np.int32))
    children: dict[bytes, _Page] = field(default_factory=dict)  # by their tokens
    # States of tokens `first` to `end` are known, [PAGE_SIZE, D]; a known row never changes.
    table: torch.Tensor | None = None
    first: int = 0
    end: int = 0

    def known(self, end: int) -> torch.Tensor:
        """Return the known states before token `end`, [n, D]; n may be 0."""
        end = min(end, self.end)
        return torch.empty(0, 0) if self.table is None else self.table[self.first : end]

    def learn(self, first: int, states: torch.Tensor) -> None:
        """Store the unknown ones of some successive states, which begin with that of a token."""
        end = first + len(states)
        if self.table is None:
            self.table = states.new_empty(PAGE_SIZE, states.shape[-1])
        if self.first == self.end or first > self.end:  # states before a gap are of no use
            self.table[first:end] = states
            self.first, self.end = first, end
            return
        if first < self.first <= end:
            self.table[first : self.first] = states[: self.first - first]
            self.first = first
        if first <= self.end < end:
            self.table[self.end : end] = states[self.end - first :]
            self.end = end


class FeatureStore:
    """States of the latest prefixes, in at most `num_pages` pages. Thread-safe."""

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        # Least recently used first. A page is used with its parent, which counts as used later.
        self._pages = OrderedDict[_Page, None]()
        self._roots = WeakValueDictionary[str | None, _Page]()  # by salt
        self._lock = threading.Lock()

    @classmethod
    def beside(cls, target: TargetInfo) -> FeatureStore:
        """Return a store that holds as many tokens as the target's cache."""
        usual = target.max_sequences * num_pages_of(target.max_model_len)
        return cls(target.num_pages or usual)

    def add(self, one: Observation) -> None:
        """Store the states of the prefix's tokens and of those accepted after it."""
        num_tail = len(one.prefix) - one.num_cached
        accepted = [one.tree.token_ids[node] for node in one.accepted_nodes]
        token_ids = np.concatenate([one.prefix, np.array(accepted, np.int32)])
        rows = [*range(num_tail), *(num_tail + node for node in one.accepted_nodes)]
        states = torch.cat([layer[rows] for layer in one.hidden_states], dim=-1)
        self.extend(token_ids, one.num_cached, states, one.salt)

    def extend(
        self, token_ids: TokenIds, start: int, states: torch.Tensor, salt: str | None = None
    ) -> None:
        """Store the states of these tokens from `start` on."""
        token_ids = token_ids.astype(np.int32, copy=False)
        with self._lock:
            page, chain = self._root(salt), list[_Page]()
            for begin in range(0, len(token_ids), PAGE_SIZE):
                page = self._child(page, token_ids[begin : begin + PAGE_SIZE])
                chain.append(page)
                here = states[max(begin - start, 0) : max(begin + PAGE_SIZE - start, 0)]
                if len(here):
                    page.learn(max(start - begin, 0), here)
            self._use(chain)
            while len(self._pages) > self._num_pages:
                self._drop_oldest()

    def find(
        self, prefix: TokenIds, max_unknown: int = 0, salt: str | None = None
    ) -> Features | None:
        """Return the known states of a prefix; its last token has none before the next step.

        None if more than max_unknown other tokens at its end have no states.
        """
        token_ids = prefix[:-1].astype(np.int32, copy=False)
        with self._lock:
            chain, num_shared = self._walk(token_ids, salt)
            if num_shared < max(len(token_ids) - max_unknown, 1):
                return None
            parts, first = list[torch.Tensor](), num_shared
            for page in reversed(chain):
                begin = (first - 1) // PAGE_SIZE * PAGE_SIZE
                rows = page.known(first - begin)
                if len(rows) == 0 or page.end < first - begin:
                    break
                parts.append(rows)
                first -= len(rows)
                if page.first:
                    break
            self._use(chain)
            return Features(first, tuple(reversed(parts))) if parts else None

    def num_known(self, token_ids: TokenIds, salt: str | None = None) -> int:
        """Return the number of leading tokens with known states."""
        with self._lock:
            chain, num_shared = self._walk(token_ids.astype(np.int32, copy=False), salt)
            num_known = 0
            for page in chain:
                num_known += 0 if page.first else page.end
                if page.first or page.end < PAGE_SIZE:
                    break
            return min(num_known, num_shared)

    def _root(self, salt: str | None) -> _Page:
        root = self._roots.get(salt)
        if root is None:
            self._roots[salt] = root = _Page()
        return root

    def _walk(self, token_ids: TokenIds, salt: str | None) -> tuple[list[_Page], int]:
        """Return the pages that hold the leading tokens, and the number of these tokens."""
        page, chain, num_shared = self._root(salt), list[_Page](), 0
        while num_shared < len(token_ids) and num_shared == len(chain) * PAGE_SIZE:
            found, count = _longest(page, token_ids[num_shared : num_shared + PAGE_SIZE])
            if found is None:
                break
            chain.append(found)
            page, num_shared = found, num_shared + count
        return chain, num_shared

    def _child(self, parent: _Page, token_ids: TokenIds) -> _Page:
        """Return the page with these tokens after a parent: stored, grown, or a new one."""
        page, count = _longest(parent, token_ids)
        if page is not None and count == len(token_ids):
            return page
        if page is not None and count == len(page.token_ids):
            del parent.children[page.token_ids.tobytes()]
            page.token_ids = token_ids.copy()
        else:
            branched, page = page, _Page(parent, token_ids.copy())
            self._pages[page] = None
            if branched is not None and len(rows := branched.known(count)):
                page.learn(branched.first, rows)
        parent.children[page.token_ids.tobytes()] = page
        return page

    def _use(self, chain: list[_Page]) -> None:
        for page in reversed(chain):
            self._pages.move_to_end(page)

    def _drop_oldest(self) -> None:
        page, _ = self._pages.popitem(last=False)
        assert page.parent is not None and not page.children, "the last page of a prefix goes first"
        del page.parent.children[page.token_ids.tobytes()]


def _longest(parent: _Page, token_ids: TokenIds) -> tuple[_Page | None, int]:
    """Return the page after a parent that has most of some tokens, and their number."""
    exact = parent.children.get(token_ids.tobytes())
    if exact is not None:
        return exact, len(token_ids)
    best: tuple[_Page | None, int] = None, 0
    for page in islice(reversed(parent.children.values()), _MAX_COMPARED):
        count = num_shared_tokens(page.token_ids, token_ids)
        if count > best[1]:
            best = page, count
    return best
